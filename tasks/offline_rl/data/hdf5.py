"""What is checked of an HDF5 file before any array of it is read."""

from pathlib import Path

import h5py

from tasks.errors import UserError

MOST_COMPRESSED = 1032
"""Times that deflate, HDF5's usual filter, makes an array smaller at best (zlib's technical notes)."""


def check_arrays(file: h5py.File, path: Path) -> None:
    """Check that every array of a file is in the file, and numbers or text.

    A dataset's header may claim any size, and HDF5 then fills up what was never written; or name another
    file that holds the data.

    Raises:
        UserError: an array that the file is too small for, or that lies in another file.
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
