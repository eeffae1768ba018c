"""Downloads from a real HTTP server on this machine, which interrupts, lies and fails on demand."""

import base64
import hashlib
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from singleshot.errors import UserError
from singleshot.io import download as module
from singleshot.io.addresses import check_address
from singleshot.io.download import download_cached
from singleshot.rl.data.transitions import D4RLFile
from singleshot.style.datasets.packing import PhotosConfig
from singleshot.style.datasets.paintings import PaintingConfig

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()
KIB_64 = 1 << 16


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("time.sleep", lambda _: None)
    return tmp_path / "singleshot/downloads"


@pytest.fixture
def server(monkeypatch, cache):
    """Serves `content` at every path, with errors of `statuses`, and bodies that end after `cut_after`."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = SimpleNamespace(content=CONTENT, statuses=[], cut_after=[], requests=[])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            served.requests.append((self.path, self.headers.get("Authorization")))
            self.send_response(served.statuses.pop(0) if served.statuses else 200)
            self.send_header("Content-Length", str(len(served.content)))
            self.end_headers()
            self.wfile.write(served.content[: served.cut_after.pop(0) if served.cut_after else None])

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        served.url = f"http://127.0.0.1:{http.server_port}/data/file.bin"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield served
        http.shutdown()
        thread.join()


def files(cache):
    return [path for path in cache.iterdir() if path.suffix != ".lock"]


def test_brings_the_file_once_and_keeps_urls_apart(server, cache):
    path, sha256 = download_cached(server.url, SHA256.upper())
    assert (sha256, path.read_bytes(), files(cache)) == (SHA256, CONTENT, [path])
    assert path.name.endswith("-file.bin")
    assert download_cached(server.url) == (path, SHA256)
    assert len(server.requests) == 1
    assert download_cached(server.url.replace("data", "other"))[0] != path


def test_callers_at_once_fetch_it_once(server):
    threads = [threading.Thread(target=download_cached, args=(server.url,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 1


def test_what_breaks_off_or_is_refused_for_a_while_is_fetched_again(server):
    server.statuses, server.cut_after = [503], [0, KIB_64]
    assert download_cached(server.url, SHA256)[1] == SHA256


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ({"statuses": [404] * 9}, "404"),
        ({"cut_after": [KIB_64] * 9}, "ChunkedEncodingError"),
        ({"content": b"another version"}, hashlib.sha256(b"another version").hexdigest()),
    ],
)
def test_a_failure_is_told_and_leaves_the_file_that_is_there(server, cache, failure, message):
    path, _ = download_cached(server.url)
    for name, value in failure.items():
        setattr(server, name, value)
    with pytest.raises(UserError, match=rf"file\.bin: .*{message}") as caught:
        download_cached(server.url, "0" * 64)
    assert "\n" not in str(caught.value)
    assert (files(cache), path.read_bytes()) == ([path], CONTENT)
    server.__dict__.update(content=b"new", statuses=[], cut_after=[])
    download_cached(server.url, hashlib.sha256(b"new").hexdigest())
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/file.bin", "s3://bucket/file.bin"])
def test_an_address_that_can_t_be_reached(url, cache, monkeypatch):
    monkeypatch.setattr(module, "RETRIES", 0)
    with pytest.raises(UserError, match=url):
        download_cached(url)
    assert files(cache) == []


@pytest.mark.parametrize(
    "address",
    ["https://me:wxyzzy@host/a.hdf5", "https://wxyzzy@host/a", "http://host/a.zip?part=1&token=wxyzzy"],
)
def test_an_address_with_a_secret_is_refused_without_showing_it(address):
    for setting in (D4RLFile, PaintingConfig, partial(PhotosConfig, "zip")):
        with pytest.raises(UserError, match="netrc") as caught:
            setting(address)
        assert "wxyzzy" not in str(caught.value)


def test_secrets_come_from_the_environment_or_from_netrc(server, cache, monkeypatch, tmp_path):
    url = f"{server.url}?part=1&signature=$OWN_SIGNATURE"
    monkeypatch.setenv("OWN_SIGNATURE", "wxyzzy")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password word\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    path, _ = download_cached(url)
    assert server.requests == [
        ("/data/file.bin?part=1&signature=wxyzzy", f"Basic {base64.b64encode(b'me:word').decode()}")
    ]
    assert "wxyzzy" not in path.name
    for plain in (url, "drawn", "/data/a@b.zip", "file:///a/b?key=1", "http://host/a.zip?part=1"):
        check_address(plain)
