"""How processes end: promptly, with their child processes, and no later than the `dvc` that started them."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

GRACE_SECONDS = 15.0


def this_process() -> str:
    """A name of this process that no other process has, on any machine and at any time."""
    return f"{os.uname().nodename}:{os.getpid()}:{_started(os.getpid())}"


def is_alive(name: str) -> bool:
    """Whether the process with a name is alive; a process on another machine is assumed to be."""
    host, _, rest = name.partition(":")
    if host != os.uname().nodename:
        return True
    pid, _, started = rest.partition(":")
    try:
        return _started(int(pid)) == started and _runs(psutil.Process(int(pid)))
    except (OSError, psutil.Error, ValueError):
        return False


def _started(pid: int) -> str:
    """When a process started: the boot, and ticks since then. A stepped clock changes times of day."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{boot}:{Path(f'/proc/{pid}/stat').read_bytes().rpartition(b')')[2].split()[19].decode()}"


@contextlib.contextmanager
def one_at_a_time(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock within the context, which does `what`; wait for another process that holds it.

    The system drops the lock when its holder ends.
    """
    from filelock import FileLock, Timeout

    lock.parent.mkdir(parents=True, exist_ok=True)
    file = FileLock(lock)
    try:
        file.acquire(timeout=0)
    except Timeout:
        print(f"waiting for another process, which is working on {what}", file=sys.stderr, flush=True)
        file.acquire()
    try:
        yield
    finally:
        file.release()


def ends_with_its_parents() -> contextlib.AbstractContextManager[None]:
    """:func:`ends_with` for the processes above this one up to `dvc`, if this is a DVC stage.

    Without this, a stage runs on when its `dvc` is killed (measured with DVC 3.67, for SIGTERM and SIGKILL).
    PR_SET_PDEATHSIG would not be enough, as a shell may run between `dvc` and the stage.

    Raises:
        KeyboardInterrupt: `dvc` has ended already, while this process imported its modules.
    """
    return ends_with(_parents() if "DVC_STAGE" in os.environ else [])


@contextlib.contextmanager
def ends_with(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Turn SIGTERM, and the end of any of `processes`, into KeyboardInterrupt in the main thread."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    stop = threading.Event()
    threading.Thread(target=_watch, args=(processes, stop), daemon=True).start()
    try:
        yield
    finally:
        stop.set()
        signal.signal(signal.SIGTERM, previous)


def _watch(processes: Sequence[psutil.Process], stop: threading.Event) -> None:
    while not stop.wait(0.5):
        if not all(map(_runs, processes)):
            os.kill(os.getpid(), signal.SIGTERM)
            if not stop.wait(GRACE_SECONDS):
                os._exit(130)  # the main thread is stuck in native code
            return


@contextlib.contextmanager
def interrupted_later() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the end of native code that takes their exception for its own crash."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread is interrupted
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _parents() -> list[psutil.Process]:
    parents = psutil.Process().parents()
    for depth, process in enumerate(parents):
        if is_dvc(process.pid):
            return parents[: depth + 1]
    # DVC starts a stage in DVC's session. A stage without its parent belongs to init, in another session.
    if parents and os.getsid(parents[0].pid) != os.getsid(0):
        raise KeyboardInterrupt
    return parents[:1]


def is_dvc(pid: int) -> bool:
    """Whether a process is alive and DVC."""
    with contextlib.suppress(psutil.Error):
        return any("dvc" in Path(word).name for word in psutil.Process(pid).cmdline()[:3])
    return False


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextlib.contextmanager
def takes_its_children_along() -> Iterator[None]:
    """End all processes that this process starts within the context, even if SIGKILL ends this process.

    After Ray's driver is killed, workers go on with their tasks, and two of Ray's agent processes live for
    another 75 seconds (measured with Ray 2.60). So a guard process, in its own session, records the
    descendants of this process and kills them when the guard's standard input closes, which happens however
    this process ends.
    """
    spared = [str(child.pid) for child in psutil.Process().children()]
    command = [sys.executable, __file__, str(os.getpid()), *spared]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait(GRACE_SECONDS)


def _guard(driver: psutil.Process, spared: set[int]) -> None:
    known: set[psutil.Process] = set()
    while not select.select([sys.stdin], [], [], 1.0)[0]:
        for child in _descendants(driver, recursive=False):
            if child.pid not in spared:
                known |= {child, *_descendants(child)}
    for process in known.union(*map(_descendants, known)):
        with contextlib.suppress(psutil.Error):
            process.kill()


def _descendants(process: psutil.Process, recursive: bool = True) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=recursive)
    return []


if __name__ == "__main__":
    driver, *others = map(int, sys.argv[1:])
    _guard(psutil.Process(driver), spared={*others, os.getpid()})
