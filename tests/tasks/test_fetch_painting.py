"""Paintings from each source, and what is said of one that is not there."""

import hashlib
import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from singleshot.errors import UserError
from singleshot.io.hashing import sha256_of
from singleshot.io.images import read_rgb
from singleshot.style.datasets.paintings import draw
from tasks.fetch_painting import PaintingParams, fetch_painting
from tasks.job import Job


def fetch(output: Path, name: str, source: str, sha256: str | None = None, px: int = 64) -> dict[str, Any]:
    output.mkdir()
    params = PaintingParams(name, source, sha256, px)
    list(fetch_painting([Job(params, params.inputs(), output)]))
    return json.loads((output / "card.json").read_text())


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "own.jpg"
    Image.new("RGB", (200, 120), (200, 80, 20)).save(path, quality=95)
    return path


def test_drawn(tmp_path: Path) -> None:
    card = fetch(tmp_path / "out", "waves", "drawn")
    painting = tmp_path / "out/painting.png"
    assert torch.equal(read_rgb(painting), draw("waves", 64))
    assert card == {
        "name": "waves",
        "origin": "drawn",
        "origin_sha256": None,
        "sha256": hashlib.sha256(painting.read_bytes()).hexdigest(),
        "width_px": 64,
        "height_px": 48,
    }


def test_unknown_drawn_painting(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no painting 'scream' is drawn here, only swirls, waves, mosaic"):
        fetch(tmp_path / "out", "scream", "drawn")


@pytest.mark.parametrize(("px", "size"), [(100, (100, 60)), (200, (200, 120)), (999, (200, 120))])
def test_file_is_scaled_down_but_not_up(
    tmp_path: Path, picture: Path, px: int, size: tuple[int, int]
) -> None:
    card = fetch(tmp_path / "out", "own", str(picture), px=px)
    assert (card["width_px"], card["height_px"]) == size
    assert (card["origin"], card["origin_sha256"]) == ("own.jpg", sha256_of(picture))
    read = read_rgb(tmp_path / "out/painting.png")
    assert read.shape == (3, *reversed(size))
    assert torch.allclose(read.mean(dim=(1, 2)) * 255, torch.tensor([200.0, 80, 20]), atol=2)


def test_url(tmp_path: Path, picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/own.jpg"
        assert PaintingParams("own", url, None, 64).inputs() == {}
        card = fetch(tmp_path / "out", "own", url, sha256_of(picture))
        server.shutdown()
    assert (card["origin"], card["origin_sha256"]) == (url, sha256_of(picture))


def test_missing_damaged_and_other_files(tmp_path: Path, picture: Path) -> None:
    with pytest.raises(
        UserError, match=r"nowhere\.jpg: can't be read .*correct style\.paintings\.sources\.own\.source"
    ):
        fetch(tmp_path / "0", "own", str(tmp_path / "nowhere.jpg"))
    with pytest.raises(
        UserError, match=r"own\.jpg: its SHA-256 is .*correct style\.paintings\.sources\.own\.sha256"
    ):
        fetch(tmp_path / "1", "own", str(picture), "0" * 64)
    picture.write_bytes(picture.read_bytes()[:400])
    with pytest.raises(UserError, match=r"own\.jpg: can't be read as a picture"):
        fetch(tmp_path / "2", "own", str(picture))
