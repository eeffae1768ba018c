import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from browsers import chromium
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parent

# Ray's workers and commands run as subprocesses find the toys of tests/support as this process does.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(TESTS / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# Read by Ray when any test imports it, and what the pipeline says as well (engine/on_ray.py).
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token")
# Some tests import onnxruntime before singleshot/export, which sets this as well.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# Tests have databases of their own.
os.environ.pop("MLFLOW_TRACKING_URI", None)
# PyTorch computes with one thread, as in a run's cells. `make test` has several processes: with a thread of
# each on every core and other work beside them, tests of style training took ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background job ignores Ctrl-C, and so would all processes that it starts; tests interrupt some.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Neither an example nor drawing one has a time limit: Hypothesis allows 200 ms, which a busy machine exceeds.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def transitions():
    """512 random transitions of Hopper's sizes, every tenth terminal."""
    from singleshot.rl.data.transitions import Transitions

    rng, n = np.random.default_rng(0), 512
    return Transitions.cast(
        rng.normal(size=(n, 11)),
        rng.uniform(-1, 1, size=(n, 3)),
        rng.normal(size=n),
        rng.normal(size=(n, 11)),
        np.arange(n) % 10 == 9,
    )


class ByFixture(LoadFileScheduling):
    """A file's tests stay in one process, as their fixtures start clusters and train.

    Those that look at a run of the whole pipeline are as one file: they share the run, which takes minutes.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        alone = file.endswith(("test_chaos.py", "test_cluster.py", "test_kills.py"))  # with runs of their own
        return "runs" if "tests/end_to_end/" in file and not alone else file


def pytest_xdist_make_scheduler(config, log):
    return ByFixture(config, log)


@pytest.fixture(autouse=True)
def one_thread():
    """PyTorch has one thread again after a test in which a stage has set another number."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture
def toys(monkeypatch):
    """The runtimes of toy_runtimes.py, by their names."""
    from singleshot.export.runtimes import RUNTIMES, Declared

    names = ["missing", "absent", "raises", "wrong", "dies", "dies-later", "hangs", "chatters", "greedy"]
    for name in ("toy", *(f"toy-{name}" for name in names)):
        monkeypatch.setitem(RUNTIMES, name, Declared("toy_runtimes", ()))


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Exports of a pruned BCQ agent (`bcq`) and of a style (`style`).

    Each is a directory with `source.safetensors`, `scores.csv` of six evaluations, the graphs in `out`, and
    the metrics.
    """
    from types import SimpleNamespace

    from small_networks import save_agent, save_scores, save_style

    from singleshot.job import Job
    from tasks.export import ExportParams, export_policy, export_style

    def export(task, cell, save, *arguments):
        path = tmp_path_factory.mktemp("exported")
        inputs = {
            "source": save(path / "source.safetensors", *arguments),
            "scores": save_scores(path / "scores.csv", [90, 1, 2, 3, 4, 5]),
        }
        (path / "out").mkdir()
        params = ExportParams(cell, opset=20, sparse_initializers=True)
        metrics = list(task([Job(params, inputs, path / "out", commit="0123abc")]))
        return SimpleNamespace(source=inputs["source"], out=path / "out", metrics=metrics)

    return SimpleNamespace(
        bcq=export(export_policy, "Hopper/bcq/random-0.98/seed-0", save_agent, "bcq", 0.98),
        style=export(export_style, "styles/dots", save_style),
    )


@pytest.fixture(scope="module")
def browser():
    """Chromium, for a file's tests."""
    with chromium() as launched:
        yield launched
