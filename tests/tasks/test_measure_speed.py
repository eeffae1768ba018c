import csv
import math
import zipfile
from dataclasses import replace

import pytest
import torch

from singleshot.errors import UserError
from singleshot.export import timing
from singleshot.io.images import encode_jpeg, encode_png
from singleshot.style.apply.stylize import stylize
from singleshot.style.backbones import save_backbone
from singleshot.style.datasets.weights import read_backbone
from singleshot.style.gatys import GatysConfig, optimize
from singleshot.style.model_file import ModelCard, save_model
from singleshot.style.transformer_net import TransformerNet
from tasks import measure_styles as module
from tasks.job import Job, Metrics, Progress
from tasks.measure_styles import SpeedConfig, SpeedParams, measure_speed

CONFIG = SpeedConfig(
    images=2, sizes_px=(32, 64), backbones=("alexnet",), iterations=30, measured_iterations=2, repeats=2
)
PARAMS = SpeedParams(CONFIG, GatysConfig())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
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
def measure(inputs, tmp_path):
    def run(params):
        events = list(measure_speed([Job(params, inputs, tmp_path)]))
        with (tmp_path / "speed.csv").open() as file:
            return list(csv.DictReader(file)), events

    return run


def test_a_row_for_each_version_and_size(measure):
    rows, events = measure(PARAMS)
    contract = ["version", "backbone", "size_px", "device", "seconds_per_image"]
    assert list(rows[0])[:5] == contract
    assert [(row["version"], row["backbone"], row["size_px"]) for row in rows] == [
        ("2", "", "32"),
        ("1", "alexnet", "32"),
        ("2", "", "64"),
        ("1", "alexnet", "64"),
    ]
    for row in rows:
        for name in ("seconds_per_image", "seconds_p50", "cpu_seconds_per_image"):
            assert 0 < float(row[name]) < math.inf
        assert (row["device"], row["images"]) == ("cpu", "2")
        assert (row["iterations"], row["extrapolated"]) == (
            ("30", "True") if row["version"] == "1" else ("", "False")
        )
    assert [event.fraction for event in events if isinstance(event, Progress)] == [
        n / 16 for n in range(1, 17)
    ]
    metrics = {event.step: event.values for event in events if isinstance(event, Metrics)}
    for version_2, version_1 in (rows[:2], rows[2:]):
        values = metrics[int(version_1["size_px"])]
        speedup = float(version_1["seconds_per_image"]) / float(version_2["seconds_per_image"])
        assert values["speedup_alexnet"] == pytest.approx(speedup)


class Clock:
    """Ten seconds pass before Version 1's first picture, one with each evaluation from there on, and half a
    one with each use of Version 2. Both are noted, with their picture's size."""

    def __init__(self, monkeypatch):
        self.now, self.log = 0.0, []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(module, "optimize", self.optimize)
        monkeypatch.setattr(module, "stylize", self.stylize)

    def optimize(self, content, style, backbone, config):
        self.log.append((1, config.size_px, tuple(content.shape), config.iterations))
        self.now += 10
        evaluated = 0
        for iterate in optimize(content, style, backbone, config):
            self.now += iterate.iteration - evaluated
            evaluated = iterate.iteration
            yield iterate

    def stylize(self, network, pictures, settings):
        self.log.append((2, pictures.shape[-1], tuple(pictures.shape[1:]), None))
        self.now += 0.5
        return stylize(network, pictures, settings)


def test_version_1_is_extrapolated_from_measured_iterations(measure, monkeypatch):
    Clock(monkeypatch)
    rows, _ = measure(PARAMS)
    # 10 s, and 2 measured iterations of 1 s standing for 30.
    assert [float(row["seconds_per_image"]) for row in rows] == [0.5, 40, 0.5, 40]


def test_turns_alternate_and_the_first_do_not_count(measure, monkeypatch):
    clock = Clock(monkeypatch)
    measure(PARAMS)
    round_ = [(2, 32), (1, 32), (2, 64), (1, 64)]
    assert [entry[:2] for entry in clock.log] == round_[:3] + round_ * 4  # two photos, twice
    assert {entry[2] for entry in clock.log} == {(3, 32, 32), (3, 64, 64)}


def test_nothing_to_time_is_an_error(measure):
    # The photo itself is the optimum where content alone has weight.
    with pytest.raises(UserError, match="alexnet at 32 px finds no lower loss"):
        measure(replace(PARAMS, gatys=GatysConfig(style_weight=0.0, tv_weight=0.0)))
