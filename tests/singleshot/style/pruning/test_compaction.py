import copy
import warnings

import pytest
import torch
from small_networks import style_inputs
from torch import nn

from singleshot.style.apply.tiling import Tile, stylized_bands
from singleshot.style.johnson import JohnsonConfig, TrainStyleParams
from singleshot.style.model_file import load_model
from singleshot.style.pruning.compaction import compact
from singleshot.style.pruning.masks import StyleMask, prunable
from singleshot.style.transformer_net import Residual, TransformerNet
from tasks.job import Job
from tasks.train_style import train_style

WIDTH = 4


@pytest.fixture
def network():
    """With biases, scales and shifts that all matter, in float64."""
    torch.manual_seed(0)
    network = TransformerNet(WIDTH)
    for θ in network.parameters():
        if θ.dim() == 1:
            nn.init.normal_(θ)
    return network.double()


def channels(network):
    return [module.out_channels for module in network.modules() if isinstance(module, nn.Conv2d)]


def parts(network):
    """Its convolutions: down, in blocks, up."""
    convs = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    return convs[:3], convs[3:13], convs[13:]


def blocks(network):
    return sum(isinstance(stage, Residual) for stage in network.stages)


def assert_equal(network, compacted):
    generator = torch.Generator().manual_seed(1)
    pictures = torch.rand(2, 3, 22, 27, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(network(pictures), copy.deepcopy(compacted).double()(pictures), atol=1e-12)


DENSE = [4, 8, 16, *[16] * 10, 8, 4, 3]


def test_a_dense_network_stays_as_it_is(network):
    compacted = compact(network)
    assert channels(compacted) == channels(network) == DENSE
    assert_equal(network, compacted)


@pytest.mark.parametrize("layer", [0, 1])
@torch.no_grad()
def test_channels_that_nothing_makes_or_nothing_reads_go(network, layer):
    down, _, _ = parts(network)
    down[layer].weight[1] = 0
    down[layer + 1].weight[:, [0, 2]] = 0
    compacted = compact(network)
    expected = DENSE.copy()
    expected[layer] -= 3
    assert channels(compacted) == expected
    assert_equal(network, compacted)


@torch.no_grad()
def test_constants_before_the_last_convolution_add_to_its_bias(network):
    _, _, up = parts(network)
    up[1].weight[[0, 3]] = 0
    network.stages[-3].bias.abs_()  # of the norm before: relu(β) isn't zero
    compacted = compact(network)
    assert channels(compacted)[-2:] == [2, 3]
    assert not torch.equal(parts(compacted)[2][2].bias, up[2].bias)
    assert_equal(network, compacted)


@torch.no_grad()
def test_a_channel_of_the_sums_goes_only_if_all_blocks_agree(network):
    down, inside, up = parts(network)
    for conv in (*inside[::2], up[0]):  # all that read channel 5
        conv.weight[:, 5] = 0
    for conv in (inside[0], inside[2], inside[6], inside[8], up[0]):  # all but the third block read channel 6
        conv.weight[:, 6] = 0
    for conv in (down[2], *inside[1::2]):  # all that make channel 7
        conv.weight[7] = 0
    down[2].weight[8] = 0  # constant until the second block adds to it
    inside[1].weight[8] = 0
    compacted = compact(network)
    assert channels(compacted) == [4, 8, 14, *[16, 14] * 5, 8, 4, 3]
    first, second, third, *_ = [stage.body[0] for stage in compacted.stages if isinstance(stage, Residual)]
    assert not first.weight[:, 6].any()  # 8 of before, read no more while it is constant
    assert not second.weight[:, 6].any()
    assert third.weight[:, 6].any()
    assert_equal(network, compacted)


@torch.no_grad()
def test_blocks_that_add_nothing_but_constants_go(network):
    _, inside, _ = parts(network)
    inside[3].weight.zero_()  # the second block's last
    inside[4].weight.zero_()  # the third block's first
    compacted = compact(network)
    assert blocks(compacted) == 3
    assert_equal(network, compacted)


@torch.no_grad()
def test_what_only_goes_to_nowhere_goes_too(network):
    """The last block's output is read in one channel alone, and the whole network up to it by that one."""
    _, inside, up = parts(network)
    up[0].weight[:, 1:] = 0
    inside[9].weight[0] = 0  # the last block adds nothing to it
    compacted = compact(network)
    assert blocks(compacted) == 4
    assert_equal(network, compacted)


@torch.no_grad()
def test_an_empty_layer_leaves_a_network_of_one_colour(network):
    _, _, up = parts(network)
    up[0].weight.zero_()
    compacted = compact(network)
    assert channels(compacted) == [1, 1, 1, 1, 1, 3]
    assert_equal(network, compacted)


@pytest.mark.parametrize("sparsity", [0.98, 0.99, 0.997])
def test_random_masks(network, sparsity):
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for θ in prunable(network).values():
            θ *= torch.rand(θ.shape, generator=generator) >= sparsity
    compacted = compact(network)
    assert sum(channels(compacted)) < sum(DENSE)
    assert_equal(network, compacted)


def test_a_trained_network_in_float32_also_in_tiles(tmp_path):
    generator = torch.Generator().manual_seed(7)
    weights = prunable(TransformerNet(WIDTH))
    kept = {name: torch.rand(θ.shape, generator=generator) >= 0.99 for name, θ in weights.items()}
    StyleMask({"pruner": "random", "sparsity": 0.99}, kept).save(tmp_path / "mask.safetensors")
    config = JohnsonConfig(width=WIDTH, image_px=32, style_px=32, batch_size=1, batches=3, learning_rate=0.01)
    inputs = {**style_inputs(tmp_path), "mask": tmp_path / "mask.safetensors"}
    list(train_style([Job(TrainStyleParams("stripes", config, 0), inputs, tmp_path)]))
    network, _ = load_model(tmp_path / "model.safetensors")
    compacted = compact(network)
    assert sum(channels(compacted)) < 0.9 * sum(channels(network))
    picture = torch.rand(1, 3, 61, 75, generator=generator)
    with torch.no_grad():
        expected = network(picture)
        assert torch.allclose(compacted(picture), expected, atol=1e-5)
        tiled = torch.cat([band for _, band in stylized_bands(compacted, picture, Tile(16))], dim=-2)
    assert torch.allclose(tiled, expected, atol=1e-4)


def test_the_original_is_left_alone(network):
    before = copy.deepcopy(network.state_dict())
    with torch.no_grad():
        parts(network)[0][0].weight[0] = 0
        before["stages.0.weight"][0] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compact(network)
    assert all(torch.equal(before[name], θ) for name, θ in network.state_dict().items())
