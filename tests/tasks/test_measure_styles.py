import csv
import math
import zipfile
from dataclasses import replace

import pytest
import skimage.data
import torch
from odd_videos import make_video
from safetensors.torch import save_file

from singleshot.errors import UserError
from singleshot.export import timing
from singleshot.io.images import encode_jpeg, encode_png, read_rgb
from singleshot.job import Job, Metrics, Progress
from singleshot.style.apply.stylize import stylize
from singleshot.style.backbones import load_backbone, save_backbone
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.datasets.weights import read_backbone, read_lpips_heads
from singleshot.style.gatys import GatysConfig, optimize
from singleshot.style.johnson import JohnsonConfig, TrainStyleParams
from singleshot.style.losses import total_variation
from singleshot.style.model_file import ModelCard, save_model
from singleshot.style.perceptual_loss import LossNetwork, style_ratio
from singleshot.style.training import train_style
from singleshot.style.transformer_net import TransformerNet
from tasks import measure_styles as module
from tasks.measure_styles import (
    QualityConfig,
    QualityParams,
    SpeedConfig,
    SpeedParams,
    measure_quality,
    measure_speed,
)

SIZE = 64
TRAINING = JohnsonConfig(
    width=4, image_px=32, style_px=48, batch_size=1, batches=1, style_weight=200.0, tv_weight=3.0
)
CONFIG = QualityConfig(
    ("astronaut", "coffee"), SIZE, study=None, compared_photos=1, max_iterations=3, frame_step=10
)
PARAMS = QualityParams("stripes", CONFIG)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Two photos, a painting of stripes as large as they are, trained weights, and a network of one step."""
    directory = tmp_path_factory.mktemp("inputs")
    (directory / "photos").mkdir()
    with zipfile.ZipFile(directory / "photos/photos.zip", "w") as file:
        for name in ("astronaut", "coffee"):
            photo = torch.from_numpy(getattr(skimage.data, name)()).permute(2, 0, 1) / 255
            file.writestr(f"{name}.jpg", encode_jpeg(photo[:, :400:4, :400:4]))
    stripes = (torch.arange(SIZE) // 3 % 2) * torch.tensor([0.9, 0.4, 0.1]).view(3, 1, 1)
    (directory / "painting.png").write_bytes(encode_png(stripes.expand(3, SIZE, SIZE)))
    paths = {"photos": directory / "photos", "painting": directory / "painting.png"}
    for name in ("vgg16", "vgg19", "alexnet"):
        paths[name] = directory / f"{name}.safetensors"
        save_backbone(read_backbone(name, "packages")[0], paths[name])
    paths["lpips"] = directory / "heads.safetensors"
    save_file(read_lpips_heads()[0], paths["lpips"])
    training = Job(TrainStyleParams("stripes", TRAINING), paths | {"backbone": paths["vgg16"]}, directory)
    list(train_style([training]))
    return paths | {"model": directory / "model.safetensors"}


@pytest.fixture
def measure(inputs, tmp_path):
    """Rows of quality.csv and of iterations.csv, and the events."""

    def run(params, **others):
        job = Job(params, inputs | others, tmp_path)
        events = list(measure_quality([job]))
        return [*(read_table(tmp_path / f"{name}.csv") for name in ("quality", "iterations")), events]

    return run


@pytest.fixture
def network_returns(monkeypatch):
    """In place of the network: any function of a picture (3, H, W)."""
    return lambda function: monkeypatch.setattr(
        module, "stylize", lambda _, pictures, settings: function(pictures[0])[None]
    )


def read_table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_row_for_each_photo_and_method(measure):
    rows, _, events = measure(PARAMS)
    methods, images = (" ".join(row[name] for row in rows) for name in ("method", "image"))
    assert (methods, images) == ("photo johnson photo johnson", "astronaut astronaut coffee coffee")
    ratios = ["style_ratio", "style_ratio_vgg19", "style_ratio_alexnet"]
    assert list(rows[0])[:9] == ["style", "method", "image", "content_loss", *ratios, "ssim", "lpips"]
    for photo, johnson in (rows[:2], rows[2:]):
        assert [float(photo[name]) for name in ("content_loss", *ratios, "lpips")] == [0, 1, 1, 1, 0]
        assert float(photo["ssim"]) == pytest.approx(1)
        assert float(johnson["content_loss"]) > 0
        assert float(johnson["ssim"]) < 1
        assert float(johnson["lpips"]) > 0
    (metrics,) = (event for event in events if isinstance(event, Metrics))
    ratios = [float(row["style_ratio"]) for row in rows if row["method"] == "johnson"]
    assert metrics.values["style_ratio"] == pytest.approx(sum(ratios) / 2)
    fractions = [event.fraction for event in events if isinstance(event, Progress)]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1


def test_iterations_are_counted_until_the_loss_is_no_more_than_the_networks(measure, network_returns, inputs):
    network_returns(lambda photo: photo)
    rows, iterations, _ = measure(PARAMS)
    astronaut, coffee = (row for row in rows if row["method"] == "johnson")
    assert float(astronaut["style_ratio"]) == 1
    assert (astronaut["equals_iterations"], astronaut["iterations_tried"]) == ("0", "0")
    assert (coffee["equals_iterations"], coffee["iterations_tried"]) == ("", "")  # wasn't compared
    assert [row["iteration"] for row in iterations] == ["0"]
    painting = read_rgb(inputs["painting"])  # a loss that no iteration reaches
    network_returns(lambda photo: painting)
    rows, iterations, _ = measure(PARAMS)
    assert float(rows[1]["style_ratio"]) < 1e-6
    assert (rows[1]["equals_iterations"], rows[1]["iterations_tried"]) == ("", "3")
    assert [row["iteration"] for row in iterations] == ["0", "1", "2", "3"]


def test_the_loss_is_the_one_of_training(measure, inputs):
    _, (first, *rest), _ = measure(PARAMS)
    # Of the photo itself, by other means: no loss of content, the painting at the training's size.
    network = LossNetwork(load_backbone(inputs["vgg16"]))
    photo = PhotoSet.open(inputs["photos"]).read("astronaut", short_side=SIZE)
    painting = read_rgb(inputs["painting"], short_side=TRAINING.style_px)
    G, A = (network.grams(picture) for picture in (photo, painting))
    style = sum(float((G[layer] - A[layer]).square().sum()) for layer in G)
    assert float(first["content_loss"]) == 0
    assert float(first["style_loss"]) == pytest.approx(style, rel=1e-4)
    tv = 3.0 * float(total_variation(photo))
    scale = sum(float(A[layer].square().sum()) for layer in A) ** 0.5
    assert float(first["total_loss"]) == pytest.approx(200.0 * style / scale + tv, rel=1e-4)
    assert float(rest[-1]["total_loss"]) < float(first["total_loss"])


GATYS = QualityParams(
    "stripes", replace(CONFIG, compared_photos=0), gatys_photo="coffee", gatys_backbones=("alexnet",)
)


def test_a_picture_of_version_1_is_measured_beside_version_2s(measure, inputs, tmp_path):
    photo = PhotoSet.open(inputs["photos"]).read("coffee", short_side=SIZE)
    picture = tmp_path / "picture.png"
    picture.write_bytes(encode_png(photo.flip(0)))
    rows, _, _ = measure(GATYS, **{"gatys-alexnet": picture})
    (row,) = (row for row in rows if row["method"] == "gatys-alexnet")
    assert row["image"] == "coffee"
    network = LossNetwork(load_backbone(inputs["vgg16"]))
    pictures = read_rgb(picture), photo, read_rgb(inputs["painting"])
    expected = style_ratio(*(network.grams(picture) for picture in pictures))
    assert float(row["style_ratio"]) == pytest.approx(expected, rel=1e-4)


def test_an_unchanged_video_has_the_photos_values(measure, tmp_path):
    clip = make_video(tmp_path / "clip.mp4", frames=5)
    params = QualityParams("stripes", replace(CONFIG, compared_photos=0, frame_step=2), clip="pan")
    rows, _, _ = measure(params, video=clip, stylized_video=clip)
    (row,) = (row for row in rows if row["image"] == "pan")
    assert row["method"] == "johnson"
    names = ("content_loss", "style_ratio", "lpips", "warping_error_ratio")
    assert [float(row[name]) for name in names] == [0, 1, 0, 1]
    assert float(row["ssim"]) == pytest.approx(1)


def test_another_painting_or_size_is_refused(measure, tmp_path):
    (tmp_path / "other.png").write_bytes(encode_png(torch.zeros(3, 40, 60)))
    with pytest.raises(UserError, match=r"model\.safetensors: .*other"):
        measure(PARAMS, painting=tmp_path / "other.png")
    with pytest.raises(UserError, match=r"other\.png: has 40 px, .* 64"):
        measure(GATYS, **{"gatys-alexnet": tmp_path / "other.png"})


SPEED = SpeedConfig(
    images=2, sizes_px=(32, 64), backbones=("alexnet",), iterations=30, measured_iterations=2, repeats=2
)
SPEED_PARAMS = SpeedParams(SPEED, GatysConfig())


@pytest.fixture(scope="module")
def speed_inputs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("inputs")
    generator = torch.Generator().manual_seed(0)
    with zipfile.ZipFile(directory / "photos.zip", "w") as file:
        for name in ("a", "b"):
            file.writestr(f"{name}.jpg", encode_jpeg(torch.rand(3, 40, 50, generator=generator)))
    (directory / "painting.png").write_bytes(encode_png(torch.rand(3, 50, 70, generator=generator)))
    save_backbone(read_backbone("alexnet", "packages")[0], directory / "alexnet.safetensors")
    card = ModelCard("noise", "", "", 0, {}, {}, "")
    save_model(TransformerNet(4), card, directory / "model.safetensors")
    return {
        "photos": directory,
        "painting": directory / "painting.png",
        "model": directory / "model.safetensors",
        "alexnet": directory / "alexnet.safetensors",
    }


@pytest.fixture
def time_them(speed_inputs, tmp_path):
    def run(params):
        events = list(measure_speed([Job(params, speed_inputs, tmp_path)]))
        with (tmp_path / "speed.csv").open() as file:
            return list(csv.DictReader(file)), events

    return run


def test_a_row_for_each_version_and_size(time_them):
    rows, events = time_them(SPEED_PARAMS)
    contract = ["version", "backbone", "size_px", "device", "seconds_per_image"]
    assert list(rows[0])[:5] == contract
    assert [(row["version"], row["backbone"], row["size_px"]) for row in rows] == [
        (version, backbone, size)
        for size in ("32", "64")
        for version, backbone in (("2", ""), ("1", "alexnet"))
    ]
    for row in rows:
        for name in ("seconds_per_image", "seconds_p50", "cpu_seconds_per_image"):
            assert 0 < float(row[name]) < math.inf
        assert (row["device"], row["images"]) == ("cpu", "2")
        expected = ("30", "True") if row["version"] == "1" else ("", "False")
        assert (row["iterations"], row["extrapolated"]) == expected
    fractions = [event.fraction for event in events if isinstance(event, Progress)]
    assert fractions == [n / 16 for n in range(1, 17)]
    metrics = {event.step: event.values for event in events if isinstance(event, Metrics)}
    for version_2, version_1 in (rows[:2], rows[2:]):
        values = metrics[int(version_1["size_px"])]
        speedup = float(version_1["seconds_per_image"]) / float(version_2["seconds_per_image"])
        assert values["speedup_alexnet"] == pytest.approx(speedup)


def test_version_1_is_extrapolated_from_measured_iterations(time_them, monkeypatch):
    """Ten seconds pass before the first picture, one with each evaluation, half a one with the network."""
    now = [0.0]

    def slow_optimize(content, style, backbone, config):
        now[0] += 10
        evaluated = 0
        for iterate in optimize(content, style, backbone, config):
            now[0] += iterate.iteration - evaluated
            evaluated = iterate.iteration
            yield iterate

    def slow_stylize(network, pictures, settings):
        now[0] += 0.5
        return stylize(network, pictures, settings)

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module, "optimize", slow_optimize)
    monkeypatch.setattr(module, "stylize", slow_stylize)
    rows, _ = time_them(SPEED_PARAMS)
    # 10 s, and 2 measured iterations of 1 s standing for 30.
    assert [float(row["seconds_per_image"]) for row in rows] == [0.5, 40, 0.5, 40]


def test_nothing_to_time_is_an_error(time_them):
    # The photo itself is the optimum where content alone has weight.
    with pytest.raises(UserError, match="alexnet at 32 px finds no lower loss"):
        time_them(replace(SPEED_PARAMS, gatys=GatysConfig(style_weight=0.0, tv_weight=0.0)))
