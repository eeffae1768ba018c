"""How long tests wait: what hangs ends, what is slow doesn't.

A test has three hours (`timeout` in pyproject.toml): the run of the profile smoke, for which a first test of
tests/end_to_end waits, takes 2 to 7 minutes on two idle cores, and took 14 on two with a load of 8. Commands
and requests have no limit of their own within it; what takes seconds has :data:`PATIENCE_S`, and what a page
in a browser shows in a moment, :data:`PAGE_S`.
"""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 900
PAGE_S = 60


def wait_until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Poll until `condition` is true; what it returned.

    What comes in the course of a run has `math.inf`, and a condition that asserts that the run lives.
    """
    deadline = time.monotonic() + patience_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"after {patience_s:g} s still not: {what}"
        time.sleep(0.2)
    return result
