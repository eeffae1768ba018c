"""The worst that a power cut may leave of files that were written shortly before."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


class PowerCut(BaseException):
    """The machine is off."""


OPERATIONS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")
"""Functions of `os` before each of which the power may be cut."""


class Disk:
    """A directory, and what `fsync` has written of it to a disk that forgets all else.

    Contents that were not synced since they changed are gone, and so are new names whose directory was not
    synced since. What was removed stays removed.
    """

    def __init__(self, root: Path):
        self._root = root
        self._contents: dict[int, tuple[int, int]] = {}
        self._names: dict[int, set[str]] = {}
        self.left: float = float("inf")
        """Number of operations until the power is cut."""

    def sync(self, file: int) -> None:
        """Record what `fsync` would keep of an open file or directory."""
        stat = os.fstat(file)
        self._contents[stat.st_ino] = (stat.st_size, stat.st_mtime_ns)
        with contextlib.suppress(NotADirectoryError):
            self._names[stat.st_ino] = set(os.listdir(file))

    def cut(self) -> None:
        """Remove everything that was not synced."""
        self.left = float("inf")
        self._cut(self._root)

    def _cut(self, directory: Path) -> None:
        for path in directory.iterdir():
            if path.name not in self._names.get(directory.stat().st_ino, set()):
                _remove(path)
            elif path.is_dir():
                self._cut(path)
            else:
                stat = path.stat()
                if self._contents.get(stat.st_ino) != (stat.st_size, stat.st_mtime_ns):
                    path.chmod(0o644)
                    path.write_bytes(b"")

    def spend(self) -> None:
        """Count an operation, at which the power may be cut."""
        self.left -= 1
        if self.left < 0:
            raise PowerCut


@contextlib.contextmanager
def disk_at(root: Path) -> Iterator[Disk]:
    """The directory `root` as such a disk."""
    disk = Disk(root)
    originals = {name: getattr(os, name) for name in OPERATIONS}

    def counted(name):
        def operation(*arguments, **options):
            disk.spend()
            if name == "fsync":
                disk.sync(*arguments)
                return None
            return originals[name](*arguments, **options)

        return operation

    try:
        for name in originals:
            setattr(os, name, counted(name))
        yield disk
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def _remove(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            _remove(inner)
        path.rmdir()
    else:
        path.unlink()
