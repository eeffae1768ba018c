import pytest
import torch

from tasks.offline_rl.agents import AgentSpec, initial_networks, make_algorithm
from tasks.offline_rl.bc import BCConfig
from tasks.offline_rl.bcq import BCQConfig
from tasks.offline_rl.learner import Learner
from tasks.offline_rl.randomness import Randomness
from tasks.offline_rl.replay import ReplayBuffer


def make(name):
    config = BCQConfig() if name == "bcq" else BCConfig()
    return make_algorithm(AgentSpec("Hopper", name, "dense", 0.0, 0), config)


def random_masks(algorithm, seeds, kept):
    """Masks (K, in, out) that keep a fraction `kept[i]` of agent i's weights, each by its own draw."""
    return {
        name: {
            layer: torch.stack(
                [
                    torch.rand(size, generator=torch.Generator().manual_seed(100 * seed + round(99 * p))) < p
                    for seed, p in zip(seeds, kept, strict=True)
                ]
            )
            for layer, size in layers.items()
        }
        for name, layers in algorithm.layers.items()
    }


def train(algorithm, transitions, seeds, masks, updates):
    learner = Learner(initial_networks(algorithm, seeds), algorithm.targets, masks, learning_rate=1e-3)
    data, randomness = ReplayBuffer(transitions), Randomness("training", seeds)
    for _ in range(updates):
        losses = algorithm.update(learner, data.sample(randomness, 100), randomness)
    return learner, losses


@pytest.mark.parametrize("name", ["bcq", "bc"])
def test_pruned_weights_moments_and_targets_are_zero_at_every_update(name, transitions):
    algorithm = make(name)
    masks = random_masks(algorithm, [0, 1], [0.05, 0.5])
    learner = Learner(initial_networks(algorithm, [0, 1]), algorithm.targets, masks, learning_rate=1e-3)
    data, randomness = ReplayBuffer(transitions), Randomness("training", [0, 1])

    for _ in range(3):
        for network, layers in masks.items():  # also before the first update
            for layer, mask in layers.items():
                weight = learner.networks[network].weights[layer]
                state = learner.optimizers[network].state[weight]
                tensors = {"weight": weight, **{m: state[m] for m in state if m != "step"}}
                if network in learner.targets:
                    tensors["target"] = learner.targets[network].weights[layer]
                for kind, tensor in tensors.items():
                    assert (tensor[~mask] == 0).all(), (network, layer, kind)
                assert (weight[mask] != 0).float().mean() > 0.99
        algorithm.update(learner, data.sample(randomness, 100), randomness)


def test_targets_start_as_copies_of_the_pruned_networks():
    algorithm = make("bcq")
    learner = Learner(
        initial_networks(algorithm, [0]), algorithm.targets, random_masks(algorithm, [0], [0.1]), 1e-3
    )
    for name, target in learner.targets.items():
        for parameter_name, parameter in learner.networks[name].parameters().items():
            assert torch.equal(target.parameters()[parameter_name], parameter)


@pytest.mark.parametrize("name", ["bcq", "bc"])
def test_an_agent_of_a_stack_ends_as_it_does_alone(name, transitions):
    """Alone, a pruned agent computes with its kept weights only. That and batched products may round
    otherwise, and Adam makes much of a tiny gradient's rounding: after 10 updates of 1e-3 each, all weights
    are within 1e-3 of the solo run's and 99.9 % of them within 1e-5."""
    algorithm = make(name)
    seeds, kept = [0, 1, 0, 1], [1.0, 0.05, 0.05, 1.0]
    stack, stack_losses = train(
        algorithm, transitions, seeds, random_masks(algorithm, seeds, kept), updates=10
    )
    for i in range(4):
        masks = None if kept[i] == 1 else random_masks(algorithm, seeds[i : i + 1], kept[i : i + 1])
        solo, losses = train(algorithm, transitions, seeds[i : i + 1], masks, updates=10)
        for loss, value in losses.items():
            assert stack_losses[loss][i].item() == pytest.approx(value.item(), rel=1e-3, abs=1e-6), loss
        for network in solo.networks:
            for parameter, own in solo.networks[network].dense().parameters().items():
                difference = (stack.networks[network].parameters()[parameter][i] - own[0]).abs()
                assert difference.max() < 1e-3, (i, network, parameter)
                assert (difference < 1e-5).float().mean() > 0.999, (i, network, parameter)


def test_an_agent_of_a_stack_differs_from_the_others(transitions):
    """The test above would pass for a stack that trains one agent K times."""
    algorithm = make("bc")
    learner, _ = train(algorithm, transitions, [0, 1], None, updates=1)
    first, second = learner.networks["vae"].weights["encoder.0"]
    assert (first - second).abs().mean() > 1e-2


def test_a_lone_pruned_agent_is_held_sparsely_and_its_state_in_full():
    algorithm = make("bcq")
    masks = random_masks(algorithm, [0], [0.05])
    learner = Learner(initial_networks(algorithm, [0]), algorithm.targets, masks, learning_rate=1e-3)
    held = learner.networks["vae"].weights["decoder.1"]
    assert held.shape == (1, masks["vae"]["decoder.1"].sum())
    learner.restore([{name: tensor * 2 for name, tensor in initial_state(algorithm, masks).items()}], 0)
    doubled = initial_networks(algorithm, [0])["vae"].weights["decoder.1"] * masks["vae"]["decoder.1"] * 2
    assert torch.equal(learner.agent_state(0)["network.vae.decoder.1.weight"], doubled)


def initial_state(algorithm, masks):
    """An agent's state before any update, as a stack of two that never computes sparsely would give it."""
    twice = {name: {layer: mask.repeat(2, 1, 1) for layer, mask in m.items()} for name, m in masks.items()}
    learner = Learner(initial_networks(algorithm, [0, 0]), algorithm.targets, twice, learning_rate=1e-3)
    learner._begin_moments(0)
    return learner.agent_state(0)


@pytest.mark.parametrize("kept", [[0.05, 1.0], [0.05]], ids=["stack", "alone"])
def test_restored_learner_goes_on_bit_for_bit(transitions, kept):
    algorithm = make("bcq")
    seeds, others = [0, 1][: len(kept)], [5, 6][: len(kept)]
    masks = random_masks(algorithm, seeds, kept)
    through, _ = train(algorithm, transitions, seeds, masks, updates=2)
    data, randomness = ReplayBuffer(transitions), Randomness("training", others)
    restored = Learner(initial_networks(algorithm, others), algorithm.targets, masks, learning_rate=1e-3)
    restored.restore([through.agent_state(i) for i in range(len(kept))], updates=2)

    batch = data.sample(randomness, 100)
    for learner in (through, restored):
        algorithm.update(learner, batch, Randomness("training", others))

    for i in range(len(kept)):
        expected, own = through.agent_state(i), restored.agent_state(i)
        assert all(torch.equal(tensor, own[name]) for name, tensor in expected.items())
