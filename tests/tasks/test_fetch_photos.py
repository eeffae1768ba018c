"""Photos from each source, with damage among them, packed in shards."""

import json
import logging
import os
import shutil
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.data import chelsea

from singleshot.errors import UserError
from singleshot.io.hashing import sha256_of
from singleshot.io.images import encode_png, read_rgb
from singleshot.style.datasets.photos import PhotoSet
from tasks.fetch_photos import PACKAGED, PhotosConfig, PhotosParams, fetch_photos
from tasks.job import Job, Progress


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five photos, two of them of one stem; a truncated one, one that is none, and what isn't looked at."""
    folder = tmp_path / "holiday"
    for i, name in enumerate(("a.png", "b.PNG", "sea/c.jpg", "sea/d.jpeg", "sky/a.webp")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60, 40), (40 * i, 200, 90)).save(path)
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(noise).save(folder / "cut.png")
    (folder / "cut.png").write_bytes((folder / "cut.png").read_bytes()[:3000])
    (folder / "page.jpg").write_text("<html>404</html>")
    (folder / "notes.txt").write_text("no photo")
    (folder / "._a.png").write_bytes(b"a resource fork")
    (folder / "gone.jpg").symlink_to("nowhere")
    return folder


def zipped(folder: Path) -> Path:
    path = folder.parent / "holiday.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"train/{file.relative_to(folder)}")
    return path


def fetch(config: PhotosConfig, output: Path, shard: int = 0) -> dict[str, Any]:
    output.mkdir(parents=True)
    params = PhotosParams.of(config, shard)
    events = list(fetch_photos([Job(params, params.inputs(), output)]))
    assert events[-1] == Progress(1)
    return json.loads((output / "card.json").read_text())


def test_folder(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        card = fetch(PhotosConfig("folder", str(folder)), tmp_path / "out")
    photos = PhotoSet.open(tmp_path / "out")
    assert list(photos.names) == ["a.png", "b", "c", "d", "sky/a.webp"]
    assert card["photos"] == 5
    assert card["origin"] == "holiday"
    assert set(card["skipped"]) == {"cut.png", "page.jpg"}
    assert "truncated" in card["skipped"]["cut.png"]
    assert card["skipped"]["page.jpg"].startswith(
        "page.jpg: can't be read as a picture (empty, or of no known format)"
    )
    assert {record.message.split(":")[0] for record in caplog.records} == {
        "skipped cut.png",
        "skipped page.jpg",
    }
    assert torch.allclose(photos.read("c"), torch.tensor([80, 200, 90]).view(3, 1, 1) / 255, atol=0.03)
    assert str(tmp_path) not in (tmp_path / "out/card.json").read_text()


def test_no_name_costs_a_photo(folder: Path, tmp_path: Path) -> None:
    """Neither one that isn't UTF-8, nor one that is another's name with a suffix."""
    odd = tmp_path / "odd"
    odd.mkdir()
    for name in (b"caf\xe9.png", b"b.jpg", b"b.png", b"b.jpg.png"):
        shutil.copy(folder / "a.png", os.fsencode(odd) + b"/" + name)
    assert fetch(PhotosConfig("folder", str(odd)), tmp_path / "out")["photos"] == 4
    assert sorted(PhotoSet.open(tmp_path / "out").names) == ["b.jpg", "b.jpg.png", "b.png", "caf\ufffd"]


def test_packing_is_deterministic(folder: Path, tmp_path: Path) -> None:
    config = PhotosConfig("folder", str(folder), short_side_px=20)
    for name in ("one", "two"):
        fetch(config, tmp_path / name)
    for file in ("photos.zip", "card.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    with zipfile.ZipFile(tmp_path / "one/photos.zip") as archive:
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        assert all(Image.open(archive.open(name)).format == "JPEG" for name in archive.namelist())


def test_photos_are_scaled_down_but_not_up(folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (30, 90)).save(folder / "small.png")
    fetch(PhotosConfig("folder", str(folder), short_side_px=36), tmp_path / "out")
    photos = PhotoSet.open(tmp_path / "out")
    assert photos.read("c").shape == (3, 36, 54)
    assert photos.read("small").shape == (3, 90, 30)


@pytest.mark.parametrize("source", ["folder", "zip"])
def test_shards_partition_the_photos(folder: Path, tmp_path: Path, source: str) -> None:
    path = folder if source == "folder" else zipped(folder)
    fetch(PhotosConfig(source, str(path)), tmp_path / "whole")
    cards = [fetch(PhotosConfig(source, str(path), shards=3), tmp_path / f"shards/{i}", i) for i in range(3)]
    whole, shards = PhotoSet.open(tmp_path / "whole"), PhotoSet.open(tmp_path / "shards")
    assert whole.names == shards.names
    assert sum(card["photos"] for card in cards) == len(whole) == 5
    assert all(torch.equal(whole.read(name), shards.read(name)) for name in whole.names)


def test_limit_takes_the_first(folder: Path, tmp_path: Path) -> None:
    card = fetch(PhotosConfig("folder", str(folder), limit=3), tmp_path / "out")
    assert list(PhotoSet.open(tmp_path / "out").names) == ["a", "b"]  # of b.PNG, a.png and cut.png
    assert list(card["skipped"]) == ["cut.png"]


def test_zip_is_read_in_place_and_checked(folder: Path, tmp_path: Path) -> None:
    archive = zipped(folder)
    sha256 = sha256_of(archive)
    card = fetch(PhotosConfig("zip", str(archive), sha256=sha256.upper()), tmp_path / "out")
    assert (card["origin"], card["sha256"], card["photos"]) == ("holiday.zip", sha256, 5)
    assert set(card["skipped"]) == {"train/cut.png", "train/page.jpg"}
    with pytest.raises(UserError, match=r"holiday\.zip: its SHA-256 is .*correct style\.photos\.sha256"):
        fetch(PhotosConfig("zip", str(archive), sha256="0" * 64), tmp_path / "other")


def test_damaged_member_of_a_zip_is_skipped(folder: Path, tmp_path: Path) -> None:
    archive = zipped(folder)
    content = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as file:
        content[file.getinfo("train/sea/c.jpg").header_offset + 100] ^= 1
    archive.write_bytes(content)
    card = fetch(PhotosConfig("zip", str(archive)), tmp_path / "out")
    assert "Bad CRC-32" in card["skipped"]["train/sea/c.jpg"]
    assert card["photos"] == 4


def test_cut_zip(folder: Path, tmp_path: Path) -> None:
    archive = zipped(folder)
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"holiday\.zip: not a zip, or an incomplete one"):
        fetch(PhotosConfig("zip", str(archive)), tmp_path / "out")


def test_zip_by_url(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    archive = zipped(folder)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/holiday.zip"
        card = fetch(PhotosConfig("zip", url), tmp_path / "out")
        server.shutdown()
    assert (card["origin"], card["sha256"], card["photos"]) == (url, sha256_of(archive), 5)
    # It is in the cache: the next shard needs no server.
    assert fetch(PhotosConfig("zip", url, shards=2), tmp_path / "again", 1)["sha256"] == sha256_of(archive)


def test_packages(tmp_path: Path) -> None:
    card = fetch(PhotosConfig(short_side_px=64), tmp_path / "out")
    photos = PhotoSet.open(tmp_path / "out")
    assert len(photos) == card["photos"] == len(PACKAGED)
    assert set(card["licences"]) == set(photos.names)
    assert card["skipped"] == {}
    assert all(min(photos.read(name).shape[1:]) == 64 for name in photos.names)
    (tmp_path / "cat.png").write_bytes(encode_png(torch.tensor(chelsea()).permute(2, 0, 1) / 255))
    cat = read_rgb(tmp_path / "cat.png", short_side=64)
    assert (photos.read("chelsea") - cat).abs().mean() < 0.01


def test_nothing_to_pack(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match=r"empty: has no picture, .*; add some$"):
        fetch(PhotosConfig("folder", str(empty)), tmp_path / "0")
    (empty / "a.jpg").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"empty: no photo can be read \(a\.jpg: can't be read"):
        fetch(PhotosConfig("folder", str(empty)), tmp_path / "1")
    with pytest.raises(UserError, match=r"has 7 pictures for 9 shards; add some, or set fewer"):
        fetch(PhotosConfig("folder", str(folder), shards=9), tmp_path / "2", 8)


@pytest.mark.parametrize("source", ["folder", "zip"])
def test_missing_source(tmp_path: Path, source: str) -> None:
    with pytest.raises(UserError, match=r"nowhere: .*[Nn]o such .*correct style\.photos\.path"):
        fetch(PhotosConfig(source, str(tmp_path / "nowhere")), tmp_path / "out")
    with pytest.raises(UserError, match=r"style\.photos\.path is not set"):
        PhotosConfig(source)


def test_parameters_hold_only_what_the_source_uses() -> None:
    packages = PhotosParams.of(PhotosConfig("packages", "x", "y"), 0)
    assert packages == PhotosParams.of(PhotosConfig(), 0)
    assert packages.inputs() == {}
    assert PhotosParams.of(PhotosConfig("folder", "x", "y"), 0).inputs() == {"folder": Path("x")}
    zipped = PhotosConfig("zip", "file://localhost/x%20y.zip")
    assert PhotosParams.of(zipped, 0).inputs() == {"zip": Path("/x y.zip")}
    assert PhotosParams.of(PhotosConfig("zip", "https://example.org/x.zip"), 0).inputs() == {}
