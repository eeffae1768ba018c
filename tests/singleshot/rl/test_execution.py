import pytest
import torch

from singleshot.rl.agents import Agent, AgentSpec, dense_masks, initial_networks, make_algorithm
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.networks import DenseNetwork, SparseNetwork

# With one sample, BCQ's choice of the best action can't turn on rounding.
CONFIGS = {"bc": BCConfig(), "bcq": BCQConfig(evaluation_samples=1)}


def an_agent(name, density):
    spec = AgentSpec("Hopper", name, "snip", 1 - density, 0)
    algorithm = make_algorithm(spec, CONFIGS[name], 11, 3)
    draw = torch.Generator().manual_seed(1)
    masks = {
        network: {layer: torch.rand(mask.shape, generator=draw) < density for layer, mask in layers.items()}
        for network, layers in dense_masks(algorithm).items()
    }
    networks = {
        network: whole.with_weights(
            {layer: 4 * θ * masks[network][layer].T for layer, θ in whole.weights.items()}
        )
        for network, whole in initial_networks(algorithm, [0]).items()
    }
    return Agent(spec, algorithm, networks, masks)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_pruned_agent_acts_sparsely_as_it_does_in_full(name):
    agent = an_agent(name, 0.05)
    networks = agent.acting_networks()
    assert all(isinstance(network, SparseNetwork) for network in networks.values())
    state, noise = torch.randn(1, 20, 11), torch.randn(1, 20, *agent.algorithm.noise_shape)
    sparse = agent.algorithm.act(networks, state, noise)
    torch.testing.assert_close(sparse, agent.algorithm.act(agent.networks, state, noise))
    assert sparse.std() > 0.03  # of states, on which actions depend


def test_an_agent_that_keeps_most_weights_acts_in_full():
    networks = an_agent("bcq", 0.9).acting_networks()
    assert all(isinstance(network, DenseNetwork) for network in networks.values())
