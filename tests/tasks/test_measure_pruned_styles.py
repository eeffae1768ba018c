import csv
import io
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import save_file
from small_networks import style_inputs

from singleshot.errors import UserError
from singleshot.io.images import encode_png, read_rgb
from singleshot.style.backbones import Backbone, load_backbone, save_backbone
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.evaluator import Evaluator
from singleshot.style.johnson import JohnsonConfig, TrainStyleParams, initial_network
from singleshot.style.model_file import load_model
from singleshot.style.perceptual_loss import LossNetwork, style_ratio
from singleshot.style.pruning.masks import StyleMask, prunable
from tasks.export_graph import ExportParams, graph_name
from tasks.export_style import export_style
from tasks.job import Job, Metrics
from tasks.measure_pruned_styles import PrunedNetwork, PrunedStylesParams, measure_pruned_styles
from tasks.train_style import train_style

pytestmark = pytest.mark.slow
TINY = JohnsonConfig(width=4, image_px=32, style_px=32, batch_size=1, batches=2)
PARAMS = PrunedStylesParams(
    "stripes",
    (PrunedNetwork("dense", 0.0), PrunedNetwork("random", 0.99)),
    photos=("b", "c"),
    quality_px=48,
    speed_px=32,
    seconds=0.01,
)
VGG19 = (3, 64, 64, 128, 128, *[256] * 4, *[512] * 8)
"""Channels of its picture and convolutions."""
ALEXNET = [(3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A dense and a pruned network of two batches, their graphs, and judges with random weights."""
    directory = tmp_path_factory.mktemp("inputs")
    made = style_inputs(directory)
    generator = torch.Generator().manual_seed(1)
    convolutions = [
        (torch.randn(o, i, k, k, generator=generator) / (i * k * k) ** 0.5, torch.zeros(o))
        for i, o, k in ALEXNET
    ]
    alexnet = Backbone("alexnet", convolutions, torch.full((3,), 0.5), torch.full((3,), 0.25))
    save_backbone(alexnet, directory / "alexnet.safetensors")
    convolutions = [
        (torch.randn(o, i, 3, 3, generator=generator) / (9 * i) ** 0.5, torch.zeros(o))
        for i, o in pairwise(VGG19)
    ]
    vgg19 = Backbone("vgg19", convolutions, torch.full((3,), 0.5), torch.full((3,), 0.25))
    save_backbone(vgg19, directory / "vgg19.safetensors")
    heads = {f"alexnet.relu{n}": torch.ones(o) for n, (_, o, _) in enumerate(ALEXNET, start=1)}
    save_file(heads, directory / "heads.safetensors")
    weights = prunable(initial_network(4, 0))
    kept = {name: torch.rand(θ.shape, generator=generator) >= 0.99 for name, θ in weights.items()}
    StyleMask({"pruner": "random", "sparsity": 0.99}, kept).save(directory / "mask.safetensors")
    inputs = {
        "photos": made["photos"],
        "painting": made["painting"],
        "vgg16": made["backbone"],
        "vgg19": directory / "vgg19.safetensors",
        "alexnet": directory / "alexnet.safetensors",
        "lpips": directory / "heads.safetensors",
    }
    for variant, mask in {"dense": {}, "random-0.99": {"mask": directory / "mask.safetensors"}}.items():
        output = directory / variant
        output.mkdir()
        list(train_style([Job(TrainStyleParams("stripes", TINY), made | mask, output)]))
        inputs[variant] = output / "model.safetensors"
        list(export_style([Job(ExportParams(variant, 18), {"source": inputs[variant]}, output)]))
        for form in ("masked", "compacted") if mask else ("dense",):
            inputs[f"{variant}/{form}"] = output / graph_name(variant, form)
    return inputs


@pytest.fixture(scope="module")
def measured(inputs, tmp_path_factory):
    output = tmp_path_factory.mktemp("measured")
    events = list(measure_pruned_styles([Job(PARAMS, inputs, output)]))
    with (output / "pruning.csv").open() as file:
        return list(csv.DictReader(file)), output, events


def test_a_row_for_each_network_with_counts_of_what_is_left(measured, inputs):
    (dense, pruned), _, _ = measured
    assert [(row["pruner"], float(row["sparsity"])) for row in (dense, pruned)] == [
        ("dense", 0),
        ("random", 0.99),
    ]
    network, _ = load_model(inputs["random-0.99"])
    weights = [θ for θ in network.parameters() if θ.dim() == 4]
    assert int(dense["weights_kept"]) == int(dense["weights_total"]) == sum(θ.numel() for θ in weights)
    assert int(pruned["weights_kept"]) == sum(int(θ.count_nonzero()) for θ in weights)
    assert int(dense["channels_kept"]) == int(dense["channels_total"])
    assert int(pruned["channels_kept"]) < int(pruned["channels_total"])
    assert int(pruned["parameters"]) < int(dense["parameters"])
    assert int(pruned["bytes"]) == inputs["random-0.99/compacted"].stat().st_size


def test_scores_are_means_over_photos(measured, inputs):
    (_, pruned), _, _ = measured
    network, _ = load_model(inputs["random-0.99"])
    vgg16 = LossNetwork(load_backbone(inputs["vgg16"]))
    evaluator = Evaluator(inputs, 48, "cpu")
    ratios, by_alexnet = [], []
    with torch.no_grad():
        painting = vgg16.grams(read_rgb(inputs["painting"], short_side=48))
        for name in PARAMS.photos:
            photo = PhotoSet.open(inputs["photos"]).read(name, short_side=48)
            grams = [vgg16.grams(x) for x in (network(photo[None])[0], photo)]
            ratios.append(style_ratio(*grams, painting))
            pictures = [evaluator.represent(x) for x in (network(photo[None])[0], photo)]
            by_alexnet.append(evaluator.scores(*pictures).style_ratio_alexnet)
    assert float(pruned["style_ratio"]) == pytest.approx(sum(ratios) / 2, rel=1e-3)
    assert float(pruned["style_ratio_alexnet"]) == pytest.approx(sum(by_alexnet) / 2, rel=1e-3)


def test_the_first_photo_by_each_network_is_kept(measured, inputs):
    _, output, _ = measured
    photo = PhotoSet.open(inputs["photos"]).read("b", short_side=48)
    assert (output / "photo.png").read_bytes() == encode_png(photo)
    network, _ = load_model(inputs["random-0.99"])
    with torch.no_grad():
        expected = network(photo[None])[0]
    stylized = read_rgb(io.BytesIO((output / "random-0.99.png").read_bytes()))
    assert float((stylized - expected).abs().max()) < 0.01
    assert {path.name for path in output.iterdir()} == {
        "photo.png",
        "dense.png",
        "random-0.99.png",
        "pruning.csv",
    }


def test_every_form_is_timed(measured):
    (dense, pruned), _, events = measured
    zeros, compacted = (
        [f"{runtime}{form}_seconds" for runtime in ("torch", "onnxruntime")] for form in ("", "_compacted")
    )
    assert all(float(row[column]) > 0 for row in (dense, pruned) for column in zeros)
    assert all(float(pruned[column]) > 0 for column in compacted)
    assert [dense[column] for column in compacted] == ["", ""]
    (metrics,) = (event for event in events if isinstance(event, Metrics))
    assert metrics.values["seconds_random-0.99"] == float(pruned["onnxruntime_compacted_seconds"])


def test_another_network_than_it_should_be_is_named(inputs, tmp_path):
    swapped = {**inputs, "random-0.99": inputs["dense"]}
    with pytest.raises(UserError, match=r"of style stripes, dense at 0, not stripes, random-0\.99"):
        list(measure_pruned_styles([Job(PARAMS, swapped, tmp_path)]))
    other = replace(PARAMS, style="dots")
    with pytest.raises(UserError, match="of style stripes"):
        list(measure_pruned_styles([Job(other, inputs, tmp_path)]))
