import pytest
import torch
from torch import nn

from singleshot.rl import networks
from singleshot.rl.agents import AgentSpec, initial_networks, make_algorithm
from singleshot.rl.algorithms.bcq import BCQConfig

LAYERS = {"a": (7, 400), "b": (400, 5)}


def test_each_agent_computes_what_nn_linear_computes():
    network = networks.initialize("test", LAYERS, seeds=[0, 1, 2])
    x = torch.randn(3, 11, 7)

    y = networks.mlp(network, ("a", "b"), x)

    for i in range(3):
        modules = {layer: nn.Linear(*size) for layer, size in LAYERS.items()}
        for layer, module in modules.items():
            module.weight.data = network.weights[layer][i].T
            module.bias.data = network.biases[layer][i, 0]
        torch.testing.assert_close(y[i], modules["b"](modules["a"](x[i]).relu()))


def test_initial_weights_are_distributed_as_those_of_nn_linear():
    network = networks.initialize("test", {"a": (400, 300)}, seeds=[0])
    reference = nn.Linear(400, 300)

    for own, other in ((network.weights["a"], reference.weight), (network.biases["a"], reference.bias)):
        assert own.abs().max() <= 1 / 400**0.5
        # 300 uniform numbers give a standard deviation within 5 % or so, 120,000 within 0.3 %.
        assert own.std() == pytest.approx(other.std().item(), rel=0.15)
        assert abs(own.mean()) < 0.15 / 400**0.5
    assert network.weights["a"].std() == pytest.approx(1 / (3 * 400) ** 0.5, rel=0.01)


def test_initial_weights_depend_on_the_seed_and_nothing_else():
    alone = networks.initialize("test", LAYERS, seeds=[3]).parameters()
    stacked = networks.initialize("test", LAYERS, seeds=[1, 3, 3, 2]).parameters()
    redrawn = networks.initialize("test", LAYERS, seeds=[3], draw=1).parameters()
    for name, own in alone.items():
        assert torch.equal(own[0], stacked[name][1])
        assert torch.equal(own[0], stacked[name][2])
        assert not torch.equal(own[0], stacked[name][3])
        assert not torch.equal(own, redrawn[name])


def test_bcq_has_the_paper_s_number_of_weights():
    """1,576,500 weights and 5,138 biases: the authors' BCQ for 17 observations and 6 actions."""
    algorithm = make_algorithm(AgentSpec("HalfCheetah", "bcq", "dense", 0.0, 0), BCQConfig(), 17, 6)
    initial = initial_networks(algorithm, seeds=[0])
    weights = {name: sum(θ.numel() for θ in network.weights.values()) for name, network in initial.items()}
    biases = sum(b.numel() for network in initial.values() for b in network.biases.values())
    assert weights == {"actor": 131_000, "critic": 259_000, "vae": 1_186_500}
    assert biases == 5_138


def test_glorot_s_weights_have_his_variance_and_the_biases_of_linear():
    layers = {"a": (400, 300)}
    linear = networks.initialize("test", layers, seeds=[0])
    glorot = networks.initialize("test", layers, seeds=[0], initialization="glorot")
    assert abs(float(glorot.weights["a"].var()) * (400 + 300) / 2 - 1) < 0.02
    assert abs(float(glorot.weights["a"].mean())) < 1e-3
    assert torch.equal(glorot.biases["a"], linear.biases["a"])
