"""Full disks: which errors mean that a disk is full, and which disk it is.

`python -m pipelines.engine.disks` names a full one, as `make repro` does when DVC has failed.
"""

import errno
import os
import shutil
import sys
import tempfile
from pathlib import Path

from singleshot.errors import UserError

PLACES = (".", ".cells", ".dvc/cache", "mlartifacts", "results")
"""Where a run writes, besides temporary directories."""
FULL = (errno.ENOSPC, errno.EDQUOT)
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
    return (
        (isinstance(error, OSError) and error.errno in FULL)
        or any(words in str(error) for words in WORDS)
        or is_disk_full(error.__cause__ or error.__context__)
    )


def disk_full_error(error: BaseException, place: Path | None = None) -> DiskFullError:
    """The error for users that names the disk.

    It is the one of the error's own file, else that of `place`, else the one with least space.
    """
    named = getattr(error, "filename", None)
    if isinstance(named, str | bytes):
        place = Path(os.fsdecode(named))
    return DiskFullError(f"{_described(place or _fullest())}; finished cells and checkpoints are kept")


def check_space(place: Path) -> None:
    """Raise DiskFullError if the disk of a directory is as good as full."""
    if place.exists() and _free_bytes(place) < LITTLE_BYTES:
        raise DiskFullError(_described(place))


def _fullest() -> Path:
    temporary = os.environ.get("RAY_TMPDIR", "/tmp"), "/dev/shm", tempfile.gettempdir()
    places = (Path(place) for place in (*PLACES, *temporary))
    return min((place for place in places if place.exists()), key=_free_bytes)


def _free_bytes(place: Path) -> int:
    disk = os.statvfs(place)
    # A disk may also have no place for another file's name; some file systems don't count them.
    return disk.f_bavail * disk.f_frsize if disk.f_favail or not disk.f_files else 0


def _described(place: Path) -> str:
    mount = next(path for path in (place.resolve(), *place.resolve().parents) if path.is_mount())
    disk = shutil.disk_usage(mount)
    space = f"{disk.free / 1e6:,.0f} of {disk.total / 1e6:,.0f} MB"
    return f"{place}: the disk at {mount} is full ({space} are free); free some space, then run this again"


if __name__ == "__main__":
    if _free_bytes(fullest := _fullest()) < LITTLE_BYTES:
        sys.exit(f"error: {_described(fullest)}")
