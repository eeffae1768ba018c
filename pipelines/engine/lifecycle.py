"""How a driver ends: promptly, cleanly, and never later than the `dvc` that started it."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import psutil

GRACE_SECONDS = 15.0


@contextlib.contextmanager
def ends_with_its_parents() -> Iterator[None]:
    """Turn SIGTERM, and the death of whoever started us, into KeyboardInterrupt in the main thread.

    A `dvc` that is killed leaves its stage running on (measured with DVC 3.67, for SIGTERM and
    SIGKILL). PR_SET_PDEATHSIG alone does not mend it: a shell may stand between the two.
    """
    previous = signal.signal(signal.SIGTERM, _interrupt)
    stop = threading.Event()
    threading.Thread(target=_watch, args=(_parents(), stop), daemon=True).start()
    try:
        yield
    finally:
        stop.set()
        signal.signal(signal.SIGTERM, previous)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parents() -> list[psutil.Process]:
    """Our parent and, within a DVC stage, everything up to and including `dvc`."""
    parents = psutil.Process().parents()
    if "DVC_STAGE" not in os.environ:
        return []
    for depth, process in enumerate(parents):
        with contextlib.suppress(psutil.Error):
            if any("dvc" in part.rsplit("/", 1)[-1] for part in process.cmdline()[:3]):
                return parents[: depth + 1]
    return parents[:1]


def _watch(parents: list[psutil.Process], stop: threading.Event) -> None:
    while not stop.wait(0.5):
        if not all(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in parents):
            os.kill(os.getpid(), signal.SIGTERM)
            if not stop.wait(GRACE_SECONDS):
                os._exit(130)  # the main thread is stuck in native code
            return
