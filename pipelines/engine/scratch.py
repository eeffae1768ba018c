"""Temporary directories that don't outlive their process, however it ends."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipelines.engine.turns import opened, taken

SCRATCH = "singleshot-scratch-"
"""Prefix of the directories' names."""
NEW_SECONDS = 60.0
"""Age up to which a directory is left alone, in seconds: its process may not have locked it yet."""


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A temporary directory, removed at the end; directories of killed processes are removed first.

    Each directory is locked by its process, and the system drops the lock however the process ends. Ray kills
    the workers of a driver that ends: each worker would leave the inputs of its cell behind, 159 MB where a
    style is trained.
    """
    for found in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        if _is_left(found):
            shutil.rmtree(found, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as directory, opened(directory, os.O_RDONLY) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(directory)


def _is_left(directory: Path) -> bool:
    with suppress(OSError):  # another user's directory, or one that was removed meanwhile
        if time.time() - directory.stat().st_mtime > NEW_SECONDS:
            with opened(directory, os.O_RDONLY) as lock:
                return taken(lock)
    return False
