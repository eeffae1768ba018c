"""Locks, which the system drops when their holder ends."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


@contextlib.contextmanager
def one_at_a_time(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock within the context, which does `what`; wait for another process that holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    file = FileLock(lock)
    try:
        file.acquire(timeout=0)
    except Timeout:
        print(f"waiting for another process, which works on {what}", file=sys.stderr, flush=True)
        file.acquire()
    try:
        yield
    finally:
        file.release()
