import pytest
import torch
from torch import nn

from singleshot.style.transformer_net import MIN_SIDE_PX, InstanceNorm, TransformerNet


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return TransformerNet(4).eval()


def without_norms(network):
    """The network with every instance norm taken out: those would blow rounding errors up."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.InstanceNorm2d):
                setattr(module, name, nn.Identity())
    return network


def test_size_of_the_paper_s_network():
    # pytorch/examples' fast_neural_style has this architecture at width 32, and this many parameters.
    assert sum(parameter.numel() for parameter in TransformerNet().parameters()) == 1_679_235


@pytest.mark.parametrize("size", [(MIN_SIDE_PX, MIN_SIDE_PX), (5, 64), (32, 32), (33, 46), (39, 31)])
def test_any_size_comes_back_in_range(network, size):
    with torch.no_grad():
        stylised = network(torch.rand(2, 3, *size))
    assert stylised.shape == (2, 3, *size)
    assert stylised.dtype == torch.float32
    assert 0 <= stylised.min() < stylised.max() <= 1


@pytest.mark.parametrize("pictures", [1, 2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_norms_in_training_are_pytorch_s_instance_norm(pictures, layout):
    torch.manual_seed(0)
    norm, reference = InstanceNorm(6, affine=True), nn.InstanceNorm2d(6, affine=True)
    with torch.no_grad():
        norm.weight.uniform_(), norm.bias.uniform_()
    reference.load_state_dict(norm.state_dict())
    x = torch.randn(pictures, 6, 9, 7).to(memory_format=layout)
    results = []
    for module in (norm, reference):
        own = x.clone().requires_grad_()
        y = module(own)
        gradients = torch.autograd.grad(y.pow(3).sum(), [own, *module.parameters()])
        results.append((y, *gradients))
    for own, expected in zip(*results, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-4)


def test_an_odd_size_is_the_mirrored_picture_cut(network):
    picture = torch.rand(1, 3, 29, 34)
    mirrored = torch.cat([picture, picture[:, :, [-2, -3, -4]]], dim=-2)
    mirrored = torch.cat([mirrored, mirrored[..., [-2, -3]]], dim=-1)
    with torch.no_grad():
        assert torch.equal(network(picture), network(mirrored)[:, :, :29, :34])


def test_no_checkerboard_and_no_border():
    """Of one colour stays of one colour, which transposed convolutions or zero padding would not leave."""
    torch.manual_seed(0)
    network = without_norms(TransformerNet(4)).double()
    picture = torch.tensor([0.2, 0.5, 0.9], dtype=torch.double).view(1, 3, 1, 1).expand(1, 3, 32, 36)
    with torch.no_grad():
        values = network.stages(network.to_input(picture))
    assert torch.allclose(values, values[..., :1, :1].expand_as(values), atol=1e-12)
