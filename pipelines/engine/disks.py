"""Full disks: which errors mean that a disk is full, and which disk it is.

`python -m pipelines.engine.disks` names a full one; `make repro` runs it when DVC has failed.
"""

import errno
import os
import shutil
import sys
import tempfile
from pathlib import Path

from singleshot.errors import UserError

PLACES = (".", ".cells", ".dvc/cache", "mlartifacts", "results", "/dev/shm")
"""Where a run writes, besides temporary directories."""
WORDS = ("No space left on device", "disk is full", "Disk quota exceeded")
"""Parts of the messages of libraries: of the system, of SQLite and Ray, and of the system for a quota."""
LITTLE_BYTES = 50_000_000
"""Free bytes below which a disk is taken for full: what was half-written may have been removed again."""


class DiskFullError(UserError):
    """A disk is full, for all other cells too; the message names the disk."""


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, is that of a full disk or an exhausted quota."""
    if error is None:
        return False
    numbers = (errno.ENOSPC, errno.EDQUOT)
    return (
        (isinstance(error, OSError) and error.errno in numbers)
        or any(words in str(error) for words in WORDS)
        or is_disk_full(error.__cause__ or error.__context__)
    )


def disk_full_error(error: BaseException | None = None, place: Path | None = None) -> DiskFullError:
    """The error for users, which names the error's own file, else `place`, else where least space is left."""
    named = getattr(error, "filename", None)
    if isinstance(named, str | bytes):
        place = Path(os.fsdecode(named))
    place = place or _fullest()
    there = next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
    disk = shutil.disk_usage(there)
    space = f"{disk.free / 1e6:,.0f} of {disk.total / 1e6:,.0f} MB"
    return DiskFullError(
        f"{place}: the disk is full ({space} are free); free some space, then run this again; finished cells "
        "and checkpoints are kept"
    )


def _fullest() -> Path:
    places = (Path(place) for place in (*PLACES, os.environ.get("RAY_TMPDIR", "/tmp"), tempfile.gettempdir()))
    return min((place for place in places if place.exists()), key=lambda place: shutil.disk_usage(place).free)


if __name__ == "__main__":
    if shutil.disk_usage(_fullest()).free < LITTLE_BYTES:
        sys.exit(f"error: {disk_full_error()}")
