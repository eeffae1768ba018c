"""HDF5 files: opening one, and reading arrays with checks before any of their data is read."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from singleshot.errors import UserError, in_a_line

MOST_COMPRESSED = 1032
"""Highest compression ratio of deflate, HDF5's usual filter (zlib's technical notes)."""
OTHERS: Mapping[bytes, str] = {
    b"version https://git-lfs": "a Git-LFS pointer; get the file itself by `git lfs pull` in its repository",
    b"\x1f\x8b": "a gzip file; unpack it first, by gunzip",
    b"BZh": "a bzip2 file; unpack it first, by bunzip2",
    b"\xfd7zXZ\0": "an xz file; unpack it first, by unxz",
    b"\x28\xb5\x2f\xfd": "a Zstandard file; unpack it first, by unzstd",
    b"PK\x03\x04": "a zip archive or NumPy's .npz; unpack it first, or write its arrays with h5py",
    b"\x93NUMPY": "NumPy's .npy; write its array with h5py",
    b"\x80": "a Python pickle; write its arrays with h5py",
    b"PAR1": "a Parquet table; write its columns with h5py",
    b"<": "a web page or XML; fetch the file again, perhaps after a log-in",
}
"""What files are that aren't HDF5, by their first bytes, and what to do. No text begins with a pickle's."""
FIRST_BYTES = 64


@contextmanager
def open_hdf5(path: Path, missing: str) -> Iterator[h5py.File]:
    """An HDF5 file to read. `missing` is the advice where there is no such file.

    On a file system without locks, the file is read without.

    Raises:
        UserError: the file is missing, open in another process that writes to it, damaged, or no HDF5 file;
            also for what is raised while the context reads arrays.
    """
    try:
        with h5py.File(path, "r", locking="best-effort") as file:
            yield file
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; {missing}") from error
    except BlockingIOError as error:
        raise UserError(
            f"{path}: another process has it open for writing; run this again when that has closed it"
        ) from error
    except PermissionError as error:
        raise UserError(f"{path}: {error.strerror or 'may not be read'}; change its permissions") from error
    except Exception as error:  # damaged bytes: OSError, RuntimeError, KeyError, TypeError, MemoryError, …
        if isinstance(error, OSError) and error.errno == errno.EISDIR:
            raise UserError(f"{path}: a folder, not an HDF5 file; give the file in it") from error
        if other := _other(path):
            raise UserError(f"{path}: not an HDF5 file but {other}") from error
        raise UserError(
            f"{path}: not a whole HDF5 file ({in_a_line(error)}); give another copy of it"
        ) from error


def _other(path: Path) -> str | None:
    """What a file is instead, and what to do; None if its first bytes don't tell, or it is an HDF5 file."""
    if h5py.is_hdf5(path):
        return None
    with path.open("rb") as file:
        first = file.read(FIRST_BYTES).lstrip()
    if not first:
        return "empty; give another copy of it"
    known = next((what for beginning, what in OTHERS.items() if first.startswith(beginning)), None)
    return known or _text(first)


def _text(first: bytes) -> str | None:
    lines = first.decode("ascii", "replace").splitlines()
    if first.isascii() and all(line.expandtabs().isprintable() for line in lines):
        return f"a text that begins {lines[0]!r}; write its numbers with h5py"
    return None


def member(group: h5py.Group, name: str, path: Path) -> h5py.Group | h5py.Dataset:
    """A group or an array of a group in the file `path`.

    Nothing is checked in what nobody asks for: files hold more than is read here.

    Raises:
        UserError: it lies in another file.
    """
    external = isinstance(group.get(name, getlink=True), h5py.ExternalLink)
    if external or (found := group[name]).file.filename != group.file.filename:
        raise UserError(f"{path}: '{name}' lies in another file; copy it into this one")
    return found


def read_array(array: h5py.Dataset, path: Path) -> Any:
    """The data of an array of the file `path`, if it is in the file itself.

    The header of an array may claim any size, and HDF5 then fills in the part that was never written. A
    header may also name another file that holds the data.

    Raises:
        UserError: the file is too small for the array, or the array lies in another file.
    """
    name = array.name[1:]
    if array.external or array.is_virtual:
        raise UserError(f"{path}: '{name}' lies in another file; copy it into this one")
    if array.nbytes > MOST_COMPRESSED * path.stat().st_size:
        raise UserError(
            f"{path}: '{name}' claims {array.nbytes:,} bytes, more than the file can hold; the file is "
            "damaged, give another copy of it"
        )
    return array[()]
