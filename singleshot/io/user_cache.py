"""The directory of the user's account in which files are kept for other runs and other checkouts."""

import errno
import os
from pathlib import Path

import platformdirs

from singleshot.errors import UserError


def user_cache(*names: str) -> Path:
    """A directory below the user's cache, on Linux `$XDG_CACHE_HOME/singleshot`; made if it isn't there.

    Raises:
        UserError: it can't be made or written to.
    """
    directory = platformdirs.user_cache_path("singleshot").joinpath(*names)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(
            f"{directory}: {error.strerror}; set XDG_CACHE_HOME to a writable directory"
        ) from None
    return directory
