"""Downloads that resume, are verified, and never damage a good file that is already there."""

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote

import requests
import urllib3
from filelock import FileLock
from requests.adapters import HTTPAdapter
from tqdm import tqdm
from urllib3.util.retry import Retry

from singleshot.errors import UserError
from singleshot.io.hashing import sha256_of
from singleshot.io.user_cache import user_cache
from singleshot.secrets import without_secrets

CHUNK_BYTES = 1 << 16
"""Fewest bytes that have to arrive within `STALL_S`, and with each request, for a download to go on."""
STALL_S = 60.0
TIMEOUT_S = (10, STALL_S)
"""Timeouts for connecting and between two bytes, in seconds."""
UNSIZED_BYTES = 1 << 32
"""Most bytes of a file whose size the server doesn't tell: 4 GiB, twice D4RL's largest file."""
RETRIES = Retry(total=4, backoff_factor=0.5, status_forcelist=(408, 429, 500, 502, 503, 504))
"""Retries of a request that gets no answer or a transient error: 4 within 7 s."""


def download(url: str, destination: Path, sha256: str | None = None) -> str:
    """Download `url`, http(s)://, to `destination` and return its SHA-256, in hexadecimal.

    A file already at `destination` is kept if it has the given SHA-256, or if none is given; it is replaced
    only by a complete, verified file. After an interruption, the part that has arrived stays beside it as
    `.part`, and the next call continues it if the server still has the same file.

    Raises:
        UserError: the file is missing, unreachable, refused (404 and the like), cut off, or has another
            SHA-256.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{destination}.lock"):
        if destination.is_file():
            found = sha256_of(destination)
            if sha256 is None or found == sha256.lower():
                return found
        part = _Part(destination)
        _fetch(url, part)
        found = sha256_of(part.path)
        if sha256 and found != sha256.lower():
            part.discard()
            raise UserError(
                f"{url}: its SHA-256 is {found}, not {sha256}; the file there is damaged or another version. "
                "Run again, or correct the SHA-256 in the configuration if that file is the one you want"
            )
        part.finish(destination)
        return found


def download_cached(url: str, sha256: str | None = None) -> tuple[Path, str]:
    """Path and SHA-256 of `url` in the user's cache of downloads, fetched with :func:`download` if needed.

    The cache (`$XDG_CACHE_HOME/singleshot/downloads` on Linux) outlives a task's output, so that an
    interrupted download resumes.
    """
    name = f"{hashlib.sha256(url.encode(errors='surrogateescape')).hexdigest()[:16]}-{_file_name(url)}"
    path = user_cache("downloads") / name
    return path, download(url, path, sha256)


def local_or_cached(local: Path | None, url: str, sha256: str | None, setting: str) -> tuple[Path, str, str]:
    """Path, origin and SHA-256 of a configured file: `local`, or if that is None, `url` in the cache.

    The origin is the local file's name or the URL. `setting` is the configuration's key of the path or URL,
    for errors; the key `sha256` beside it has the expected SHA-256.

    Raises:
        UserError: the file is missing, unreadable or unreachable, or has another SHA-256.
    """
    if local is None:
        path, found = download_cached(url, sha256)
        return path, url, found
    try:
        found = sha256_of(local)
    except OSError as error:
        raise UserError(f"{local}: can't be read ({error.strerror}); correct {setting}") from error
    if sha256 and found != sha256.lower():
        raise UserError(
            f"{local}: its SHA-256 is {found}, not {sha256}; fetch it again, or correct "
            f"{setting.rpartition('.')[0]}.sha256"
        )
    return local, local.name, found


def _file_name(url: str) -> str:
    """The name of the file at `url`, cut to a length that file systems accept."""
    return url.partition("?")[0].partition("#")[0].rpartition("/")[2][-100:]


def is_remote(url: str) -> bool:
    """Whether `url` needs a network: not file:// and not a path."""
    return "://" in url and not url.startswith("file://")


def local_path(location: str) -> Path:
    """The path of a file or folder that a setting gives as file:// or as a path.

    In file://, %20 and the like stand for characters, and the host may be `localhost` (RFC 8089).
    """
    if not location.startswith("file://"):
        return Path(location).expanduser()
    path = location.removeprefix("file://")
    return Path(
        unquote(path.removeprefix("localhost") if path.startswith("localhost/") else path)
    ).expanduser()


@dataclass(frozen=True)
class _Origin:
    """The file that a partial file is a part of; bytes of two origins must not be joined."""

    url: str
    validator: str | None
    """Strong ETag or date of the last change, for `If-Range` (RFC 9110, section 13.1.5)."""
    total: int | None
    """Bytes of the whole file; None where the server does not say."""


class _Part:
    """A partial file, `NAME.part`, with its origin in `NAME.part.json`."""

    def __init__(self, destination: Path):
        self.path = destination.with_name(destination.name + ".part")
        self._record = destination.with_name(destination.name + ".part.json")

    def __len__(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def origin(self) -> _Origin | None:
        try:
            return _Origin(**json.loads(self._record.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def begin(self, origin: _Origin) -> None:
        self.discard()
        self._record.write_text(json.dumps(asdict(origin)), encoding="utf-8")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._record.unlink(missing_ok=True)

    def finish(self, destination: Path) -> None:
        self.path.replace(destination)
        self._record.unlink(missing_ok=True)


class _EndlessError(Exception):
    """A file of unknown size is larger than :data:`UNSIZED_BYTES`."""


def _fetch(url: str, part: _Part) -> None:
    """Fill `part`, going on after each interruption for as long as bytes keep coming."""
    with requests.Session() as session:
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(max_retries=RETRIES))
        while True:
            before = len(part)
            try:
                return _transfer(session, url, part)
            except _EndlessError as error:
                part.discard()
                raise UserError(
                    f"{url}: the server tells no size, and sends more than {UNSIZED_BYTES:,} bytes; if that "
                    "is no mistake, fetch the file elsewhere and give its path instead"
                ) from error
            except requests.HTTPError as error:
                raise UserError(f"{url}: the server answers '{error}'; check the address") from error
            except (requests.exceptions.InvalidSchema, ValueError) as error:
                # ValueError: a URL that can't be parsed, here or where the server redirects to.
                raise UserError(f"{url}: not a URL of http, https or file; correct it") from error
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                if len(part) - before < CHUNK_BYTES:
                    raise UserError(
                        f"{url}: can't be downloaded ({type(error).__name__}); {len(part):,} bytes are here. "
                        "Check the network and run again to go on from there, or fetch the file elsewhere "
                        "and give its path instead"
                    ) from error


def _transfer(session: requests.Session, url: str, part: _Part) -> None:
    """Request the rest of the file if its origin is known to be the same, else all of it."""
    headers = {"Accept-Encoding": "identity"}
    origin = part.origin()
    if origin and origin.url == without_secrets(url) and origin.validator and len(part):
        if len(part) == origin.total:
            return
        headers |= {"Range": f"bytes={len(part)}-", "If-Range": origin.validator}
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            part.discard()
        response.raise_for_status()
        length = response.headers.get("Content-Length")
        remaining = int(length) if length and length.isdecimal() else None
        if response.status_code != requests.codes.partial_content:
            part.begin(_Origin(without_secrets(url), _validator(response), remaining))
        _append(response, part, remaining)


def _validator(response: requests.Response) -> str | None:
    etag = response.headers.get("ETag", "")
    return etag if etag.startswith('"') else response.headers.get("Last-Modified")


def _append(response: requests.Response, part: _Part, remaining: int | None) -> None:
    have = len(part)
    total = have + remaining if remaining is not None else None
    name = part.path.name.removesuffix(".part")
    with (
        part.path.open("ab") as file,
        # disable=None: no bar where standard error is no terminal.
        tqdm(total=total, initial=have, desc=name, unit="B", unit_scale=True, disable=None) as bar,
    ):
        start, since = time.monotonic(), have
        # read1() returns what has arrived: a server that sends a byte a minute would fill no chunk for weeks.
        while chunk := response.raw.read1(CHUNK_BYTES, decode_content=True):
            file.write(chunk)
            bar.update(len(chunk))
            if total is None and file.tell() > UNSIZED_BYTES:
                raise _EndlessError
            if time.monotonic() - start > STALL_S:
                if file.tell() - since < CHUNK_BYTES:
                    raise requests.ReadTimeout
                start, since = time.monotonic(), file.tell()
