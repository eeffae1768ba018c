"""Backbones against torchvision's own networks, and the normalisation's two invariants."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import avg_pool2d

from singleshot.errors import UserError
from singleshot.io.vision import models
from singleshot.style.backbones import (
    CONTENT_LAYER,
    STYLE_LAYERS,
    Backbone,
    BackboneName,
    load_backbone,
    normalize_activations,
    save_backbone,
)

# Where torchvision's documentation of the architectures has the ReLUs, in `features`.
POSITIONS: dict[BackboneName, dict[str, int]] = {
    "vgg16": {"relu1_1": 1, "relu1_2": 3, "relu2_1": 6, "relu2_2": 8, "relu3_1": 11, "relu3_2": 13}
    | {"relu3_3": 15, "relu4_1": 18, "relu4_2": 20, "relu4_3": 22}
    | {"relu5_1": 25, "relu5_2": 27, "relu5_3": 29},
    "vgg19": {"relu1_1": 1, "relu1_2": 3, "relu2_1": 6, "relu2_2": 8, "relu3_1": 11, "relu3_2": 13}
    | {"relu3_3": 15, "relu3_4": 17, "relu4_1": 20, "relu4_2": 22, "relu4_3": 24, "relu4_4": 26}
    | {"relu5_1": 29, "relu5_2": 31, "relu5_3": 33, "relu5_4": 35},
    "alexnet": {"relu1": 1, "relu2": 4, "relu3": 7, "relu4": 9, "relu5": 11},
}
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def original(architecture):
    """torchvision's network with random weights, such that activations neither vanish nor explode."""
    with torch.device("meta"):
        features = getattr(models, architecture)().features
    torch.manual_seed(0)
    for module in features.to_empty(device="cpu"):
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
            nn.init.uniform_(module.bias, -0.1, 0.1)
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return features.requires_grad_(False)


def backbone_of(features, architecture, pooling="max"):
    convolutions = [(m.weight, m.bias) for m in features if isinstance(m, nn.Conv2d)]
    return Backbone(architecture, convolutions, MEAN, STD, pooling)


@pytest.fixture(scope="module")
def alexnet():
    return backbone_of(original("alexnet"), "alexnet")


def pictures(n, size, seed=0):
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("architecture", list(POSITIONS))
def test_activations_are_those_of_torchvisions_network(architecture):
    features = original(architecture)
    x = pictures(2, 64)
    expected = {}
    y = (x - MEAN.view(1, 3, 1, 1)) / STD.view(1, 3, 1, 1)
    for position, module in enumerate(features):
        y = module(y)
        expected[position] = y
    activations = backbone_of(features, architecture)(x, POSITIONS[architecture])
    assert activations.keys() == POSITIONS[architecture].keys()
    for layer, position in POSITIONS[architecture].items():
        torch.testing.assert_close(activations[layer], expected[position])
    assert {*STYLE_LAYERS[architecture], CONTENT_LAYER[architecture]} <= activations.keys()


def test_average_pooling():
    features = original("vgg16")
    x = pictures(1, 16)
    y = avg_pool2d(features[:4]((x - MEAN.view(1, 3, 1, 1)) / STD.view(1, 3, 1, 1)), 2)
    backbone = backbone_of(features, "vgg16", "average")
    torch.testing.assert_close(backbone(x, ["relu2_1"])["relu2_1"], features[5:7](y))
    alexnet = backbone_of(original("alexnet"), "alexnet", "average")
    y = alexnet(x := pictures(1, 64), ["relu1", "relu2"])
    torch.testing.assert_close(y["relu2"], alexnet.features[3:5](avg_pool2d(y["relu1"], 3, stride=2)))


def test_a_file_has_torchvisions_names(alexnet, tmp_path):
    save_backbone(alexnet, tmp_path / "weights.safetensors")
    tensors = load_file(tmp_path / "weights.safetensors")
    torch.testing.assert_close((tensors.pop("mean"), tensors.pop("std")), (MEAN, STD))
    with torch.device("meta"):
        network = models.alexnet()
    assert tensors.keys() == {name for name in network.state_dict() if name.startswith("features.")}
    loaded = load_backbone(tmp_path / "weights.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), alexnet.parameters(), strict=True))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_what_is_no_backbone_is_told(alexnet, tmp_path):
    path, named = tmp_path / "weights.safetensors", {"architecture": "alexnet"}
    save_backbone(alexnet, path)
    whole, tensors = path.read_bytes(), load_file(path)
    for write in (
        path.unlink,
        lambda: path.write_bytes(whole[:-1000]),
        lambda: save_file(tensors, path),
        lambda: save_file(tensors, path, {"architecture": "vgg16"}),
        lambda: save_file({"features.0.bias": tensors["features.0.bias"]}, path, named),
        lambda: save_file(tensors | {"features.0.bias": torch.zeros(3)}, path, named),
    ):
        write()
        with pytest.raises(UserError, match=r"weights\.safetensors: .*fetch the weights again"):
            load_backbone(path)


@pytest.mark.parametrize("architecture", ["vgg16", "alexnet"])
def test_normalisation_makes_means_one_and_is_only_a_scale(architecture):
    # In float64: a filter that fires at one position of thousands has a mean of few digits.
    backbone = backbone_of(original(architecture), architecture, "average").double()
    batches = [pictures(2, 48, seed).double() for seed in range(2)]
    normalized, means = normalize_activations(backbone, batches, min_mean=1e-6)
    assert normalized.pooling == "average"
    x = torch.cat(batches)
    before, after = backbone(x, POSITIONS[architecture]), normalized(x, POSITIONS[architecture])
    for layer, μ in means.items():
        torch.testing.assert_close(μ, before[layer].mean((0, 2, 3)).float())
        after_means = after[layer].mean((0, 2, 3))
        torch.testing.assert_close(after_means[μ > 0], torch.ones_like(after_means[μ > 0]), rtol=1e-5, atol=0)
        un_scaled = after[layer] * μ.view(1, -1, 1, 1)
        torch.testing.assert_close(un_scaled, before[layer], rtol=1e-5, atol=1e-6)


def test_rare_filters_are_amplified_no_more_than_the_bound_allows(alexnet):
    x = pictures(4, 64)
    normalized, means = normalize_activations(alexnet, [x], min_mean=0.8)
    before, after = alexnet(x, means), normalized(x, means)
    for layer, μ in means.items():
        bound = 0.8 * μ.mean()
        rare = μ < bound
        assert 0 < rare.sum() < len(μ)
        expected = torch.where(rare, μ / bound, 1.0)
        torch.testing.assert_close(after[layer].mean((0, 2, 3)), expected, rtol=1e-4, atol=1e-6)
        un_scaled = after[layer] * μ.clamp_min(bound).view(1, -1, 1, 1)
        torch.testing.assert_close(un_scaled, before[layer], rtol=1e-3, atol=1e-4)
