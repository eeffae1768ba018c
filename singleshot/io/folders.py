"""Folders: of networks in the working directory, and of what the user's account keeps for all checkouts."""

import tempfile
from pathlib import Path

import platformdirs

from singleshot.errors import explained

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
    with explained("a cache can't be kept", "set XDG_CACHE_HOME to a writable directory"):
        directory = platformdirs.user_cache_path("singleshot").joinpath(*names)  # if there is a home folder
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
