"""Who may work in a checkout at the same time: locks that the system drops when their holder ends.

`python -m pipelines.engine.turns COMMAND…` runs a command while nothing else works in this checkout. It needs
no package, as `make clean` removes them.
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
    """Keep `make clean` out of this checkout meanwhile; wait for one that is at it."""
    if not DVC.parent.is_dir():  # no checkout
        yield
        return
    with _lock_file(IN_USE) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def alone(lock: Path, what: str) -> Iterator[None]:
    """Do `what` while nobody else does it under the same lock; wait for those who do.

    The lock is a file that lives as long as it is held.
    """
    while True:
        with _lock_file(lock) as file:
            if not taken(file):
                others = _holders(lock)
                print(f"waiting for process {others}, which is at {what}", file=sys.stderr, flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(lock, file):  # its holder has removed it, and others may have locked a new one
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def run_alone(command: list[str]) -> None:
    """Run a command, or end with a line that says who works in this checkout."""
    with contextlib.ExitStack() as files:
        for lock in (IN_USE, DVC / "lock"):  # the second is DVC's, while it runs no stage's command
            if not taken(files.enter_context(_lock_file(lock))):
                _refuse(_holders(lock))
        if others := at_stages():
            _refuse(others)
        sys.exit(subprocess.run(command, check=False).returncode)


def _refuse(others: str) -> NoReturn:
    sys.exit(f"error: process {others} works in this checkout; run this again when it has ended")


def at_stages() -> str:
    """The processes of DVC that run a stage's command, by number; it imports before it is at :func:`in_use`.

    DVC writes down who reads and writes a stage's paths, and forgets that where it is killed.
    """
    with contextlib.suppress(FileNotFoundError, ValueError):  # DVC was killed while it wrote the file
        used = json.loads((DVC / "rwlock").read_text())
        entries = [*used.get("write", {}).values(), *itertools.chain(*used.get("read", {}).values())]
        return _listed({entry["pid"] for entry in entries if Path(f"/proc/{entry['pid']}").exists()})
    return ""


@contextlib.contextmanager
def opened(path: Path | str, flags: int) -> Iterator[int]:
    """A file or directory, to be locked by its descriptor."""
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
    """Whether an exclusive lock was to be had; if so, `file` has it now."""
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
    """The other processes that have opened a lock, by number."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.samefile(lock):
                found.add(int(link.parts[2]))
    return _listed(found - {os.getpid()})


def _listed(pids: set[int]) -> str:
    return ", ".join(map(str, sorted(pids)))


if __name__ == "__main__":
    run_alone(sys.argv[1:])
