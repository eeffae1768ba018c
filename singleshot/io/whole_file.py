"""Files that appear only when they are complete, even after a power cut; SHA-256 of files and values."""

import errno
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A temporary file to write to, beside `target`, which it replaces unless there is an error.

    Its name is unique, so nobody else writes it, and no link that lies there is followed. What a killed
    process has left of `target` is removed.

    Raises:
        OSError: the file can't be written; it names `target`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    beginning = f".{sha256_of_value(target.name)[:8]}"  # the name itself may be as long as names can be
    for left in target.parent.glob(f"{beginning}-*.partial"):
        if left.is_file():
            with suppress(OSError), left.open("rb") as file:  # BlockingIOError, if its writer lives
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
    partial = target.with_name(f"{beginning}-{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield partial
                move_synced(partial, target)
            finally:
                partial.unlink(missing_ok=True)
    except OSError as error:
        if error.errno and (error.filename is None or partial.name in str(error.filename)):
            # By the only name that anybody knows.
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise


def move_synced(complete: Path, target: Path) -> None:
    """Rename a file or directory to `target`. On return, both its contents and its new name are on the disk.

    A file system may write a new name long before the contents: after a power cut, the file is empty.
    """
    for path in [*complete.rglob("*"), complete]:
        sync(path)
    complete.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Write what the system has buffered of a file's contents, or of a directory's entries, to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems don't sync directories
            raise
    finally:
        os.close(file)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_value(value: object) -> str:
    """SHA-256 of a value that JSON can hold, in hexadecimal, regardless of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
