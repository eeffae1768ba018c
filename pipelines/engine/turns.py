"""Locks on a checkout, which decide what may run in it at the same time.

The system drops a lock when its holder ends. `python -m pipelines.engine.turns COMMAND…` runs a command only
if no other process works in this checkout. It needs no installed package, as `make clean` removes them.
"""

import contextlib
import fcntl
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

DVC = Path(".dvc/tmp")
IN_USE = DVC / "in_use.lock"


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Keep `make clean` from running in this checkout within the context; wait for one that is running."""
    if not DVC.parent.is_dir():  # not a checkout
        yield
        return
    with _lock_file(IN_USE) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def alone(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock within the context, which does `what`; wait for other processes that hold the lock.

    The lock is a file that exists as long as the lock is held.
    """
    while True:
        with _lock_file(lock) as file:
            if not taken(file):
                others = _holders(lock)
                print(f"waiting for process {others}, which works on {what}", file=sys.stderr, flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(lock, file):  # the holder has removed it, and others may have locked a new one
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def run_alone(command: list[str]) -> None:
    """Run a command; if other processes work in this checkout, end with a line that names them instead."""
    with contextlib.ExitStack() as files:
        for lock in (IN_USE, DVC / "lock"):  # DVC holds the second, except while a stage's command runs
            if not taken(files.enter_context(_lock_file(lock))):
                _refuse(_holders(lock))
        if others := at_stages():
            _refuse(others)
        sys.exit(subprocess.run(command, check=False).returncode)


def _refuse(others: str) -> NoReturn:
    sys.exit(f"error: process {others} works in this checkout; run this again when it has ended")


def at_stages() -> str:
    """The ids of the DVC processes that run a stage's command, which may not have called :func:`in_use` yet.

    DVC records which process reads and writes a stage's paths. The records of a killed DVC stay, and another
    process may have its id by now.
    """
    with contextlib.suppress(FileNotFoundError, ValueError):  # DVC was killed while it wrote the file
        used = json.loads((DVC / "rwlock").read_text())
        entries = [*used.get("write", {}).values(), *itertools.chain(*used.get("read", {}).values())]
        return _listed({entry["pid"] for entry in entries if _is_dvc(entry["pid"])})
    return ""


def _is_dvc(pid: int) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        return b"dvc" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@contextlib.contextmanager
def opened(path: Path | str, flags: int) -> Iterator[int]:
    """The descriptor of a file or directory, with which it can be locked."""
    file = os.open(path, flags, 0o666)
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with opened(path, os.O_RDWR | os.O_CREAT) as file:
        yield file


def taken(file: int) -> bool:
    """Try to get an exclusive lock for `file`, without waiting; returns whether `file` has it now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, file: int) -> bool:
    """Whether an open file is still the one at its path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file))
    return False


def _holders(lock: Path) -> str:
    """The ids of the other processes that have opened a lock, without those that they have forked."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.samefile(lock):
                found.add(int(link.parts[2]))
    found.discard(os.getpid())
    return _listed({pid for pid in found if _parent(pid) not in found})


def _parent(pid: int) -> int | None:
    with contextlib.suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("PPid:"):
                return int(line.split()[1])
    return None


def _listed(pids: set[int]) -> str:
    return ", ".join(map(str, sorted(pids)))


if __name__ == "__main__":
    run_alone(sys.argv[1:])
