"""Checks of an HDF5 file before any of its arrays is read."""

from pathlib import Path

import h5py

from singleshot.errors import UserError

MOST_COMPRESSED = 1032
"""Highest compression ratio of deflate, HDF5's usual filter (zlib's technical notes)."""


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
                f"{path}: '{name}' claims {thing.nbytes:,} bytes, more than the file can hold; delete it and "
                "fetch it again"
            )

    def check_link(name: str, link: object) -> None:
        if isinstance(link, h5py.ExternalLink):
            raise UserError(f"{path}: '{name}' lies in another file; copy it into this one")

    file.visititems(check)
    file.visititems_links(check_link)
