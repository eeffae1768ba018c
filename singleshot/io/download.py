"""Files at addresses: checked, fetched with pooch, kept in the user's cache."""

import hashlib
import os
import sys
from pathlib import Path

import pooch
from filelock import FileLock

from singleshot.errors import UserError, explained, in_a_line
from singleshot.io.folders import user_cache
from singleshot.io.whole_file import sha256_of

TIMEOUT_S = (10, 60)
"""Timeouts for connecting and between two bytes, in seconds."""
RETRIES = 2
"""Further attempts, after 1 and 2 seconds, at a download that breaks off or brings other bytes."""


def download_cached(url: str, sha256: str | None = None) -> tuple[Path, str]:
    """Path and SHA-256 of `url`, http(s)://, in the user's cache of downloads, fetched if needed.

    A file in the cache is kept if it has the given SHA-256, or if none is given, and replaced only by a
    complete, verified one. $NAME in the URL stands for an environment variable; ~/.netrc has passwords. The
    cache is `$XDG_CACHE_HOME/singleshot/downloads` on Linux.

    Raises:
        UserError: the file is missing, unreachable, refused (404 and the like), cut off, or has another
            SHA-256.
    """
    from requests import RequestException

    digest = hashlib.sha256(url.encode(errors="surrogateescape")).hexdigest()
    name = f"{digest[:16]}-{url.partition('?')[0].rpartition('/')[2][-100:]}"
    directory = user_cache("downloads")
    address = os.path.expandvars(url)
    if not address.startswith(("http://", "https://")):
        raise UserError(f"{url}: not a URL of http, https or file; correct it")
    pooch.get_logger().setLevel("WARNING")
    files = pooch.create(
        directory,
        base_url="",
        registry={name: sha256 and f"sha256:{sha256}"},
        urls={name: address},
        retry_if_failed=RETRIES,
    )
    downloader = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(),
        chunk_size=1 << 16,
        timeout=TIMEOUT_S,
        headers={"Accept-Encoding": "identity"},
    )
    try:
        with FileLock(f"{directory / name}.lock"):
            path = Path(files.fetch(name, downloader=downloader))
    except RequestException as error:
        reason = error.response.status_code if error.response is not None else type(error).__name__
        raise UserError(
            f"{url}: can't be downloaded ({reason}); check the address and the network, or fetch the file "
            "elsewhere and give its path instead"
        ) from error
    except ValueError as error:  # pooch's for another SHA-256
        raise UserError(
            f"{url}: {in_a_line(error)} Correct the SHA-256 in the configuration if you want that file"
        ) from error
    return path, sha256_of(path)


def local_or_cached(local: Path | None, url: str, sha256: str | None, setting: str) -> tuple[Path, str, str]:
    """Path, origin and SHA-256 of a configured file: `local`, or if that is None, `url` in the cache.

    The origin is the local file's name or the URL. `setting` is what has to be corrected if the file is
    missing, for the error.

    Raises:
        UserError: the file is missing, unreadable or unreachable, or has another SHA-256.
    """
    if local is None:
        path, found = download_cached(url, sha256)
        return path, url, found
    with explained(f"{local}: can't be read", f"correct {setting}"):
        found = sha256_of(local)
    if sha256 and found != sha256.lower():
        raise UserError(
            f"{local}: its SHA-256 is {found}, not {sha256}; fetch it again, or correct what you expect"
        )
    return local, local.name, found
