"""Opening an HDF5 file, with checks before any of its arrays is read."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from singleshot.errors import UserError, in_a_line

MOST_COMPRESSED = 1032
"""Highest compression ratio of deflate, HDF5's usual filter (zlib's technical notes)."""


@contextmanager
def open_hdf5(path: Path, missing: str) -> Iterator[h5py.File]:
    """An HDF5 file to read. `missing` is the advice where there is no such file.

    On a file system without locks, the file is read without.

    Raises:
        UserError: the file is missing, open in another process that writes to it, or damaged, or
            :func:`check_arrays` fails; also for what is raised while the context reads arrays.
    """
    try:
        with h5py.File(path, "r", locking="best-effort") as file:
            check_arrays(file, path)
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
        raise UserError(
            f"{path}: not a whole HDF5 file ({in_a_line(error)}); give another copy of it"
        ) from error


def check_arrays(file: h5py.File, path: Path) -> None:
    """Check that the data of every array is in the file itself.

    The header of an array may claim any size, and HDF5 then fills in the part that was never written. A
    header may also name another file that holds the data.

    Raises:
        UserError: the file is too small for an array, or an array lies in another file.
    """
    room = MOST_COMPRESSED * path.stat().st_size

    def check(name: str, thing: h5py.Group | h5py.Dataset) -> None:
        if not isinstance(thing, h5py.Dataset):
            return
        if thing.external or thing.is_virtual:
            raise UserError(f"{path}: '{name}' lies in another file; copy it into this one")
        if thing.nbytes > room:
            raise UserError(
                f"{path}: '{name}' claims {thing.nbytes:,} bytes, more than the file can hold; the file is "
                "damaged, give another copy of it"
            )

    def check_link(name: str, link: object) -> None:
        if isinstance(link, h5py.ExternalLink):
            raise UserError(f"{path}: '{name}' lies in another file; copy it into this one")

    file.visititems(check)
    file.visititems_links(check_link)
