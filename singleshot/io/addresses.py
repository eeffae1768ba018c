"""Paths and URLs in settings.

This module is separate from downloads: settings of agents' data depend on it, and all agents would be trained
again with every new version of the packages that download.
"""

import re
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit
from urllib.request import url2pathname

from singleshot.errors import UserError

_SIGNS = re.compile(
    "auth|bearer|code|cred|hmac|jwt|key|otp|pass|policy|pwd|secret|session|sig|ticket|token", re.IGNORECASE
)
"""Parts of the names of what signs or authorises in a query."""


def check_address(address: str) -> None:
    """Refuse a setting's path or URL that holds a secret, as what runs leave behind repeats the settings.

    Raises:
        UserError: it has a user, or a signature, token or the like in its query.
    """
    if not is_remote(address):
        return
    parts = urlsplit(re.sub(r"\$\w+", "", address))
    signs = [name for name, _ in parse_qsl(parts.query) if _SIGNS.search(name)]
    if signs or parts.netloc.rpartition("@")[0].strip(":"):
        raise UserError(
            f"{address}: holds a password or a signature, which would be committed; write $NAME in its place "
            "and set the environment variable NAME, or give user and password in ~/.netrc"
        )


def is_remote(url: str) -> bool:
    """Whether `url` needs a network: not file:// and not a path."""
    return "://" in url and not url.startswith("file://")


def local_path(location: str) -> Path:
    """The path of a file or folder that a setting gives as file:// or as a path."""
    path = url2pathname(urlsplit(location).path) if location.startswith("file://") else location
    return Path(path).expanduser()
