"""Downloads from a real HTTP server on this machine, which interrupts, lies and fails on demand."""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from singleshot.errors import UserError
from singleshot.io import download as module
from singleshot.io.download import download, download_cached
from singleshot.io.hashing import sha256_of

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()
KIB_64 = 1 << 16


@dataclass
class Server:
    """Serves `content` at every path, with ranges and `If-Range` as RFC 9110 has them."""

    content: bytes = CONTENT
    etag: str | None = '"1"'
    cut_after: list[int] = field(default_factory=list)
    """Bytes of the body after which each next response breaks off."""
    statuses: list[int] = field(default_factory=list)
    """Errors that each next response has instead of content."""
    endless: bytes | None = None
    """What is sent in place of content, again and again for ever, with no word of a size."""
    pause_s: float = 0.0
    """Between two of these."""
    requests: list[str | None] = field(default_factory=list)
    """The `Range` of each request so far."""
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/data/file.bin"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.requests.append(wanted)
        if self.statuses:
            request.send_response(self.statuses.pop(0))
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if self.endless:
            request.send_response(200)
            request.end_headers()
            with contextlib.suppress(OSError):  # the client is gone
                while True:
                    request.wfile.write(self.endless)
                    time.sleep(self.pause_s)
        start = 0
        if wanted and request.headers.get("If-Range") == self.etag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        body = self.content[start:]
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.etag:
            request.send_header("ETag", self.etag)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: self.cut_after.pop(0)] if self.cut_after else body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(module, "RETRIES", module.RETRIES.new(backoff_factor=0.01))
    served = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, request, client_address):
            """A client that gives up is what some tests are about: no traceback among their results."""

    with Quiet(("127.0.0.1", 0), Handler) as http:
        served.port = http.server_port
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield served
        http.shutdown()
        thread.join()


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "file.bin"


def leftovers(destination: Path) -> set[str]:
    return {path.name for path in destination.parent.iterdir()} - {destination.name, "file.bin.lock"}


def test_brings_the_file_and_its_sha256(server: Server, destination: Path) -> None:
    assert download(server.url, destination) == SHA256
    assert destination.read_bytes() == CONTENT
    assert leftovers(destination) == set()


def test_goes_on_within_a_call_as_long_as_bytes_come(server: Server, destination: Path) -> None:
    server.cut_after = [KIB_64 + 1000, 2 * KIB_64]
    assert download(server.url, destination, SHA256) == SHA256
    assert server.requests == [None, f"bytes={KIB_64 + 1000}-", f"bytes={3 * KIB_64 + 1000}-"]


def test_the_next_call_goes_on_where_the_last_one_broke_off(server: Server, destination: Path) -> None:
    server.cut_after = [10 * KIB_64 + 1, 0]
    with pytest.raises(UserError, match="655,361 bytes are here"):
        download(server.url, destination, SHA256)
    assert not destination.exists()
    server.requests.clear()
    assert download(server.url, destination, SHA256) == SHA256
    assert server.requests == ["bytes=655361-"]
    assert destination.read_bytes() == CONTENT


@pytest.mark.parametrize("etag", ['"2"', None, 'W/"1"'])
def test_parts_of_two_versions_are_not_joined(server: Server, destination: Path, etag: str | None) -> None:
    server.cut_after = [KIB_64, 0]
    with pytest.raises(UserError):
        download(server.url, destination)
    server.content, server.etag = CONTENT[::-1], etag
    download(server.url, destination)
    assert destination.read_bytes() == CONTENT[::-1]


def test_without_a_validator_it_starts_again(server: Server, destination: Path) -> None:
    server.etag, server.cut_after = None, [KIB_64]
    download(server.url, destination)
    assert server.requests == [None, None]
    assert destination.read_bytes() == CONTENT


def test_a_part_of_another_url_is_not_used(server: Server, destination: Path) -> None:
    server.cut_after = [KIB_64, 0]
    with pytest.raises(UserError):
        download(server.url, destination)
    server.requests.clear()
    download(server.url.replace("file", "other"), destination)
    assert server.requests == [None]


def test_a_whole_part_needs_no_network(server: Server, destination: Path) -> None:
    """As after a kill between the last byte and the rename."""
    server.cut_after = [KIB_64, 0]
    with pytest.raises(UserError):
        download(server.url, destination)
    destination.with_name("file.bin.part").write_bytes(CONTENT)
    server.requests.clear()
    assert download(server.url, destination, SHA256) == SHA256
    assert server.requests == []


def test_a_part_longer_than_the_file_is_thrown_away(server: Server, destination: Path) -> None:
    server.cut_after = [KIB_64, 0]
    with pytest.raises(UserError):
        download(server.url, destination)
    server.statuses = [416]
    with pytest.raises(UserError, match="416"):
        download(server.url, destination)
    assert leftovers(destination) == set()


def test_transient_errors_are_tried_again(server: Server, destination: Path) -> None:
    server.statuses = [503, 429, 500]
    assert download(server.url, destination) == SHA256


def test_a_server_that_drips_for_ever_is_left(
    server: Server, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALL_S", 0.5)
    server.endless, server.pause_s = b"x", 0.1
    with pytest.raises(UserError, match=r"file\.bin: can't be downloaded \(ReadTimeout\)"):
        download(server.url, destination)
    assert server.requests == [None]


def test_a_file_without_size_is_taken_up_to_a_limit(
    server: Server, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNSIZED_BYTES", 10 * KIB_64)
    server.endless = bytes(KIB_64)
    with pytest.raises(UserError, match=r"file\.bin: the server tells no size, and sends more than 655,360"):
        download(server.url, destination)
    assert leftovers(destination) == set()


def test_an_error_that_stays_is_told(server: Server, destination: Path) -> None:
    server.statuses = [404]
    with pytest.raises(UserError, match=r"file\.bin: the server answers '404 .*check the address"):
        download(server.url, destination)
    assert server.requests == [None]
    server.statuses = [503] * 20
    with pytest.raises(UserError, match=r"file\.bin: can.t be downloaded \(RetryError\)"):
        download(server.url, destination)


def test_another_checksum_is_an_error_and_leaves_nothing(server: Server, destination: Path) -> None:
    with pytest.raises(UserError, match=f"SHA-256 is {SHA256}, not {'0' * 64}; .*Run again, or correct"):
        download(server.url, destination, "0" * 64)
    assert not destination.exists()
    assert leftovers(destination) == set()


def test_the_good_file_is_neither_fetched_again_nor_harmed(server: Server, destination: Path) -> None:
    download(server.url, destination, SHA256)
    server.requests.clear()
    assert download(server.url, destination, SHA256.upper()) == SHA256
    assert download(server.url, destination) == SHA256
    assert server.requests == []
    failures = [
        ({"statuses": [404]}, "404"),
        ({"cut_after": [KIB_64, 0]}, "bytes are here"),
        ({"content": b"another version"}, "SHA-256 is"),
    ]
    for failure, message in failures:
        for name, value in failure.items():
            setattr(server, name, value)
        with pytest.raises(UserError, match=message):
            download(server.url, destination, "0" * 64)
        assert destination.read_bytes() == CONTENT


def test_a_file_with_the_wrong_checksum_is_replaced(server: Server, destination: Path) -> None:
    destination.parent.mkdir()
    destination.write_bytes(b"old")
    assert download(server.url, destination, SHA256) == SHA256
    assert destination.read_bytes() == CONTENT


def test_no_network(server: Server, destination: Path) -> None:
    del server  # its fixture shortens the waits
    for url in ("http://127.0.0.1:9/file.bin", "http://no-such-host.invalid/file.bin"):
        with pytest.raises(
            UserError, match=f"{url}: can.t be downloaded .ConnectionError.*give its path instead"
        ):
            download(url, destination)
    assert not destination.exists()


def test_an_unknown_scheme(destination: Path) -> None:
    with pytest.raises(UserError, match="s3://bucket/file: not a URL of http, https or file"):
        download("s3://bucket/file", destination)


def test_callers_at_once_fetch_it_once(server: Server, destination: Path) -> None:
    threads = [threading.Thread(target=download, args=(server.url, destination)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.requests == [None]
    assert sha256_of(destination) == SHA256


def test_the_cache_keeps_urls_apart(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, sha256 = download_cached(server.url)
    assert sha256 == SHA256
    assert first.is_relative_to(tmp_path)
    second, _ = download_cached(server.url.replace("data", "other"))
    assert first != second
    assert first.name.endswith("-file.bin")
    assert download_cached(server.url) == (first, SHA256)
    assert server.requests == [None, None]
