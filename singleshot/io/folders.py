"""Folders: of networks in the working directory, and of what the user's account keeps for all checkouts."""

import errno
import os
from pathlib import Path

import platformdirs

from singleshot.errors import UserError, in_a_line

TRAINED = Path("models/styles")
"""Networks of styles that the pipeline has trained, in the working directory as those below."""
LEARNED = Path("styles")
"""Networks for users' own paintings, from the command `learn-style`; no stage uses this directory."""
GRAPHS = Path("models/onnx")
PAINTINGS = Path("data/images/paintings")
MODEL = "model.safetensors"
"""A style's network in the style's own folder."""


def user_cache(*names: str) -> Path:
    """A directory below the user's cache, on Linux `$XDG_CACHE_HOME/singleshot`; made if it isn't there.

    Raises:
        UserError: it can't be made or written to.
    """
    try:
        directory = platformdirs.user_cache_path("singleshot").joinpath(*names)
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        raise UserError(f"{why}; set XDG_CACHE_HOME to a writable directory") from None
    except RuntimeError as error:  # this user has no home folder
        raise UserError(f"{in_a_line(error)}; set XDG_CACHE_HOME to a writable directory") from None
    return directory
