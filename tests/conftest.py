import os
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# Ray's workers and commands run as subprocesses find the toys of tests/support as this process does.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(TESTS / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# Read by Ray when any test imports it, and what the pipeline says as well (engine/ray_cluster.py).
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items):
    """In `make test`'s two processes, a file's tests stay together: their fixtures start clusters and train.

    Those that run the whole pipeline are one group: they share a run that takes minutes.
    """
    for item in items:
        path = item.path.relative_to(TESTS)
        group = path.parts[0] if path.parts[0] == "end_to_end" else str(path)
        item.add_marker(pytest.mark.xdist_group(group))
