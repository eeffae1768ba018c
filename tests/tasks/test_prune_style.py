import csv
from dataclasses import replace

import pytest
import torch
from small_networks import style_inputs

from singleshot.errors import UserError
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.johnson import JohnsonConfig, TrainStyleParams, initial_network, open_loss
from singleshot.style.pruning.masks import load_mask, prunable
from tasks.job import Job
from tasks.prune_style import (
    MaskSettings,
    PruneStyleParams,
    flow,
    make_mask,
    open_residuals,
    prune_style,
)

TINY = JohnsonConfig(width=4, image_px=32, style_px=32, batch_size=2, batches=3, augment=True, tv_weight=2.0)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return style_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def prune(inputs, tmp_path):
    count = iter(range(1000))

    def run(pruner, sparsity, seed=0, **settings):
        output = tmp_path / f"masks-{next(count)}"
        output.mkdir()
        mask = MaskSettings(pruner, sparsity, **{"photos": 2, **settings})
        job = Job(PruneStyleParams(TrainStyleParams("stripes", TINY, seed), mask), inputs, output)
        list(prune_style([job]))
        return output

    return run


def kept_of(directory):
    return load_mask(directory / "mask.safetensors").kept


@pytest.fixture(scope="module")
def scored(inputs):
    """The network that is scored, and its loss by its ordinary forward pass."""
    network = initial_network(4, 0)
    open_residuals(network)
    loss = open_loss(inputs, TINY, "cpu", torch.float32)
    x = PhotoSet.open(inputs["photos"]).batch(0, 0, 2, 32, True)
    content = loss.network.content(x)
    return network, lambda: loss(network(x), content).total


def top(scores, kept):
    """The mask of the `kept` highest scores, by name."""
    flat = torch.cat([score.flatten() for score in scores.values()])
    bound = flat.sort(descending=True).values[kept - 1]
    return {name: score >= bound for name, score in scores.items()}


def agreement(masks, expected):
    equal = torch.cat([(masks[name] == expected[name]).flatten() for name in expected])
    return float(equal.float().mean())


def test_snip_keeps_the_weights_whose_removal_the_loss_feels_most(prune, scored):
    network, loss = scored
    weights = prunable(network)
    total = sum(θ.numel() for θ in weights.values())
    gradients = torch.autograd.grad(loss(), list(weights.values()))
    scores = {name: (θ * g).abs() for (name, θ), g in zip(weights.items(), gradients, strict=True)}
    masks = kept_of(prune("snip", 0.9))
    assert sum(int(kept.sum()) for kept in masks.values()) == total - round(0.9 * total)
    assert agreement(masks, top(scores, total - round(0.9 * total))) > 0.9999


def test_grasp_keeps_the_weights_that_carry_the_gradient_s_norm(prune, scored):
    network, loss = scored
    weights = prunable(network)
    total = sum(θ.numel() for θ in weights.values())
    gradients = torch.autograd.grad(loss(), list(weights.values()), create_graph=True)
    half_norm = sum(g.square().sum() for g in gradients) / 2
    slopes = torch.autograd.grad(half_norm, list(weights.values()))  # Hg
    scores = {name: θ * Hg for (name, θ), Hg in zip(weights.items(), slopes, strict=True)}
    masks = kept_of(prune("grasp", 0.5))
    assert agreement(masks, top(scores, total - round(0.5 * total))) > 0.999


def test_residual_blocks_which_start_closed_compete_too(prune):
    layers = kept_of(prune("snip", 0.5))
    assert all(kept.any() for kept in layers.values())
    assert "stages.9.body.0.weight" in layers


def test_random_masks_are_as_sparse_everywhere_and_differ_by_seed(prune):
    first, again, other = (kept_of(prune("random", 0.75, seed=seed)) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["stages.6.weight"], other["stages.6.weight"])
    assert float(first["stages.9.body.0.weight"].float().mean()) == pytest.approx(0.25, abs=0.03)


def test_random_numbers_are_a_seed_s_own_in_each_round(inputs, tmp_path, monkeypatch):
    draws = []

    def spy(objectives, weights, *_, **__):
        generators = [objectives(iteration)["stripes"].generator for iteration in (0, 1)]
        draws.extend(float(torch.rand((), generator=generator)) for generator in generators)
        return {"stripes": {name: θ > 0 for name, θ in weights["stripes"].items()}}

    monkeypatch.setattr("tasks.prune_style.prune_networks", spy)
    for seed in (0, 1):
        params = PruneStyleParams(TrainStyleParams("stripes", TINY, seed), MaskSettings("random", 0.5, 1))
        make_mask(Job(params, inputs, tmp_path))
    assert draws[0] == draws[1] != draws[2] == draws[3]


def test_flow_is_the_forward_pass_without_biases_norms_and_nonlinearities():
    network = initial_network(4, 0)
    weights = {name: θ.abs().double() for name, θ in prunable(network).items()}
    ones = torch.ones(1, 3, 16, 16, dtype=torch.float64)
    stripped = network.double()
    for name, module in stripped.named_modules():
        for attribute, child in list(module.named_children()):
            if isinstance(child, torch.nn.InstanceNorm2d | torch.nn.ReLU):
                setattr(module, attribute, torch.nn.Identity())
            elif isinstance(child, torch.nn.Conv2d):
                place = f"{name}.{attribute}" if name else attribute
                child.weight.data, child.bias.data = weights[f"{place}.weight"], torch.zeros_like(child.bias)
    with torch.no_grad():
        expected = stripped.stages(ones)[0, :, 7, 7].sum()
        assert float(flow(network, weights)) == pytest.approx(float(expected), rel=1e-9)


def test_synflow_in_rounds_leaves_no_layer_empty(prune):
    layers = kept_of(prune("synflow", 0.9, iterations=50))
    assert all(kept.any() for kept in layers.values())


def test_what_it_leaves(prune):
    directory = prune("snip", 0.9)
    mask = load_mask(directory / "mask.safetensors")
    assert mask.origin == {"pruner": "snip", "sparsity": 0.9, "photos": 2, "iterations": 1}
    with (directory / "layers.csv").open() as file:
        rows = list(csv.DictReader(file))
    counts = {row["layer"]: (int(row["weights_total"]), int(row["weights_kept"])) for row in rows}
    assert counts == {name: (kept.numel(), int(kept.sum())) for name, kept in mask.kept.items()}


def test_an_unknown_pruner_is_named(prune):
    with pytest.raises(UserError, match="unknown pruner 'chop'; known are erk"):
        prune("chop", 0.5)


def test_scores_that_are_not_finite_are_an_error(inputs, tmp_path):
    training = TrainStyleParams("stripes", replace(TINY, style_weight=1e38), 0)
    params = PruneStyleParams(training, MaskSettings("grasp", 0.5, 2))
    with pytest.raises(UserError, match=r"grasp's scores of stripes's layer .* are not all finite"):
        list(prune_style([Job(params, inputs, tmp_path)]))
