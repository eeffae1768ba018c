"""Losses of sparse networks, with gradients written out, against autograd of the same networks in full."""

from dataclasses import replace

import pytest
import torch

from singleshot.rl.actor_critic import td_loss
from singleshot.rl.agents import AgentSpec, initial_networks, layers_of, make_algorithm
from singleshot.rl.algorithms.bc import encode, vae_loss
from singleshot.rl.algorithms.bcq import BCQConfig, perturb, perturbation_loss
from singleshot.rl.data.replay import Batch
from singleshot.rl.networks import from_parameters
from singleshot.rl.training.learner import Learner

PHI = 0.5
BATCH = 130  # more than a block of lanes


def learners(scale):
    """A sparse learner and one in full, of the same pruned weights times `scale`: large ones reach limits."""
    algorithm = make_algorithm(AgentSpec("Hopper", "bcq", "random", 0.8, 0), BCQConfig(phi=PHI), 11, 3)
    generator = torch.Generator().manual_seed(0)
    masks = {
        name: {layer: torch.rand(1, *size, generator=generator) < 0.2 for layer, size in layers.items()}
        for name, layers in layers_of(algorithm).items()
    }
    networks = {
        name: network.map(lambda tensor: scale * tensor)
        for name, network in initial_networks(algorithm, [0]).items()
    }
    return algorithm, *(
        Learner(networks, algorithm, masks, execution=execution) for execution in ("sparse", "masked")
    )


def batch():
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(2, 1, BATCH, 11, generator=generator)
    action = 2 * torch.rand(1, BATCH, 3, generator=generator) - 1
    return Batch(states[0], action, torch.randn(1, BATCH), states[1], torch.ones(1, BATCH))


def compare(name, sparse, full, loss):
    """Terms of `loss(learner)`, and gradients of their sum by network `name`, against autograd's in full."""
    own_terms, terms = loss(sparse), loss(full)
    assert own_terms.keys() == terms.keys()
    for term, value in terms.items():
        torch.testing.assert_close(own_terms[term], value.detach(), rtol=1e-5, atol=1e-6)
    network = full.networks[name]
    gradients = torch.autograd.grad(sum(terms.values()).sum(), list(network.parameters().values()))
    expected = from_parameters(dict(zip(network.parameters(), gradients, strict=True)))
    pruned = {layer: mask.bool() for layer, mask in full.masks[name].items()}
    expected = expected.with_weights({layer: w * pruned[layer] for layer, w in expected.weights.items()})
    own = replace(sparse.networks[name], values=own_terms.gradients).within(expected.map(torch.zeros_like))
    for key, tensor in expected.parameters().items():
        scale = tensor.abs().max().item()
        torch.testing.assert_close(own.parameters()[key], tensor, rtol=1e-4, atol=5e-5 * scale + 1e-9)


@pytest.mark.parametrize("scale", [1, 9])
def test_losses_and_gradients_are_autograds_of_the_networks_in_full(scale):
    _, sparse, full = learners(scale)
    own, generator = batch(), torch.Generator().manual_seed(2)
    noise, y = torch.randn(1, BATCH, 6, generator=generator), torch.randn(1, BATCH, generator=generator)
    losses = {
        "vae": lambda x: vae_loss(x.networks["vae"], own.state, own.action, noise),
        "actor": lambda x: perturbation_loss(
            x.networks["actor"], x.networks["critic"], own.state, own.action, PHI
        ),
        "critic": lambda x: td_loss(x.networks["critic"], own, y),
    }
    for name, loss in losses.items():
        if name != "critic" or scale == 1:
            compare(name, sparse, full, loss)
    if scale == 9:  # limits are reached
        _, log_std = encode(full.networks["vae"], own.state, own.action)
        assert (log_std == -4).any()
        assert (log_std > -4).any()
        assert (perturb(full.networks["actor"], own.state, own.action, PHI).abs() == 1).any()


def test_a_diverging_network_has_no_finite_loss():
    _, sparse, _ = learners(1)
    own = batch()
    with torch.no_grad():
        for parameter in sparse.networks["vae"].parameters().values():
            parameter.fill_(torch.nan)
    noise = torch.zeros(1, BATCH, 6)
    losses = vae_loss(sparse.networks["vae"], own.state, own.action, noise)
    assert not any(loss.isfinite().any() for loss in losses.values())
