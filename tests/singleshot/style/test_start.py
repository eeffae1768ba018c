import pytest
import torch
from safetensors.torch import save_file

from singleshot.style.start import START, started_network
from singleshot.style.transformer_net import TransformerNet


@pytest.fixture
def start(tmp_path):
    torch.manual_seed(0)
    network = TransformerNet(4)
    for weight in network.parameters():
        weight.data = (weight.data + 0.05 * torch.randn_like(weight)).half().float()
    halves = {name: tensor.half() for name, tensor in network.state_dict().items()}
    save_file(halves, tmp_path / "start.safetensors")
    return network, tmp_path / "start.safetensors"


@pytest.mark.parametrize("width", [4, 8, 12])
def test_a_wider_network_computes_the_same(start, width):
    network, path = start
    photos = torch.rand(2, 3, 32, 40, generator=torch.Generator().manual_seed(1))
    wide = started_network(path, width, seed=0)
    with torch.inference_mode():
        torch.testing.assert_close(wide(photos), network(photos), rtol=0, atol=1e-4)


def test_copies_of_a_channel_learn_different_things(start):
    assert started_network(start[1], 6, seed=0) is None
    wide = started_network(start[1], 8, seed=0)
    wide(torch.rand(1, 3, 32, 32)).square().mean().backward()
    gradient = wide.stages[0].weight.grad
    assert (gradient[:4] - gradient[4:]).abs().max() > 1e-3 * gradient.abs().max()


def test_the_shipped_start_is_small_and_whole():
    assert START.stat().st_size < 2_000_000
    for width in (16, 32):
        network = started_network(START, width, seed=0)
        assert all(bool(weight.isfinite().all()) for weight in network.parameters())
