import pytest
import torch

from singleshot.errors import UserError
from singleshot.rl.agents import AgentSpec, initial_networks, layers_of, make_algorithm
from singleshot.rl.algorithm import algorithm_class
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.data.replay import Randomness, ReplayBuffer
from singleshot.rl.networks import SparseNetwork
from singleshot.rl.training.learner import Learner

ALL = ["bcq", "bc", "td3bc", "iql"]


def make(name):
    config = algorithm_class(name).config_type()
    return make_algorithm(AgentSpec("Hopper", name, "dense", 0.0, 0), config, 11, 3)


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
        for name, layers in layers_of(algorithm).items()
    }


def train(algorithm, transitions, seeds, masks, updates, execution="auto"):
    networks = initial_networks(algorithm, seeds)
    learner = Learner(networks, algorithm, masks, execution=execution, updates=10)
    data, randomness = ReplayBuffer(transitions), Randomness("training", seeds)
    losses = {}
    for number in range(1, updates + 1):
        whole = number % algorithm.delay == 0
        losses |= learner.update(data.sample(randomness, 100), randomness, whole)
    return learner, losses


def assert_close(own, other, name):
    difference = (own - other).abs()
    assert (difference < 1e-3).all(), name
    assert (difference < 1e-5).sum() >= 0.999 * difference.numel(), name


@pytest.mark.parametrize("name", ALL)
def test_pruned_weights_moments_and_targets_are_zero_at_every_update(name, transitions):
    algorithm = make(name)
    masks = random_masks(algorithm, [0, 1], [0.05, 0.5])
    learner = Learner(initial_networks(algorithm, [0, 1]), algorithm, masks, updates=3)
    data, randomness = ReplayBuffer(transitions), Randomness("training", [0, 1])

    for _ in range(3):
        for network, layers in masks.items():  # also before the first update
            for layer, mask in layers.items():
                weight = learner.networks[network].weights[layer]
                state = learner.optimizers[network].state
                tensors = {"weight": weight, **{moment: own[weight] for moment, own in state.items()}}
                if network in learner.targets:
                    tensors["target"] = learner.targets[network].weights[layer]
                for kind, tensor in tensors.items():
                    assert (tensor[~mask] == 0).all(), (network, layer, kind)
                assert (weight[mask] != 0).sum() >= 0.99 * mask.sum()
        learner.update(data.sample(randomness, 100), randomness)


@pytest.mark.parametrize("name", ALL)
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
            for parameter, own in solo.whole(0)[network].parameters().items():
                assert_close(
                    stack.networks[network].parameters()[parameter][i], own[0], (i, network, parameter)
                )


@pytest.mark.parametrize(
    ("name", "kept"), [("bcq", 0.02), ("bcq", 0.3), ("bc", 0.05), ("td3bc", 0.05), ("iql", 0.9)]
)
def test_sparse_execution_trains_as_masked_execution_does(name, kept, transitions):
    """Sums are of the same terms in another order: see the test above for what that may come to."""
    algorithm = make(name)
    masks = random_masks(algorithm, [0], [kept])
    sparse, losses = train(algorithm, transitions, [0], masks, updates=10, execution="sparse")
    masked, expected = train(algorithm, transitions, [0], masks, updates=10, execution="masked")
    assert all(isinstance(network, SparseNetwork) for network in sparse.networks.values())
    assert not any(isinstance(network, SparseNetwork) for network in masked.networks.values())
    for loss, value in expected.items():
        assert losses[loss].item() == pytest.approx(value.item(), rel=1e-3, abs=1e-6), loss
    own, others = sparse.agent_state(0), masked.agent_state(0)
    assert own.keys() == others.keys()
    for key, tensor in others.items():
        assert_close(own[key], tensor, key)


def test_auto_holds_those_networks_sparsely_that_keep_little():
    algorithm = make("bcq")
    masks = random_masks(algorithm, [0], [0.05])
    masks["actor"] = random_masks(algorithm, [0], [0.9])["actor"]
    learner = Learner(initial_networks(algorithm, [0]), algorithm, masks)
    sparse = {name for name, network in learner.networks.items() if isinstance(network, SparseNetwork)}
    assert sparse == {"critic", "vae"}
    assert learner.masks.keys() == {"actor"}
    held = sum(tensor.numel() for tensor in learner.networks["vae"].parameters().values())
    assert held < 0.06 * sum(mask.numel() for mask in masks["vae"].values())
    dense = Learner(initial_networks(algorithm, [0]), algorithm, None, execution="sparse")  # of a sweep
    assert not any(isinstance(network, SparseNetwork) for network in dense.networks.values())


def test_sparse_execution_of_a_stack_and_a_decay_of_unknown_length_are_refused():
    algorithm = make("bc")
    masks = random_masks(algorithm, [0, 1], [0.05, 0.05])
    with pytest.raises(UserError, match=r"offline_rl\.execution"):
        Learner(initial_networks(algorithm, [0, 1]), algorithm, masks, execution="sparse")
    spec = AgentSpec("Hopper", "bc", "dense", 0.0, 0)
    algorithm = make_algorithm(spec, BCConfig(learning_rate_decay=True), 11, 3)
    with pytest.raises(ValueError, match="updates"):
        Learner(initial_networks(algorithm, [0]), algorithm, None)


def test_a_sparse_agents_state_is_in_full_and_has_what_takes_no_part(transitions):
    """Units that lead nowhere keep their first weights, and moments of zero."""
    algorithm = make("bc")
    masks = random_masks(algorithm, [0], [0.05])
    masks["vae"]["encoder.1"][0, :4] = False  # the first layer's units 0 to 3 lead nowhere
    learner, _ = train(algorithm, transitions, [0], masks, updates=3, execution="sparse")
    state, first = learner.agent_state(0), initial_networks(algorithm, [0])["vae"]
    changed = state["network.vae.encoder.0.weight"] != first.weights["encoder.0"] * masks["vae"]["encoder.0"]
    assert not changed[0, :, :4].any()
    assert changed[0, :, 4:][masks["vae"]["encoder.0"][0, :, 4:]].float().mean() > 0.9
    assert torch.equal(state["network.vae.encoder.0.bias"][..., :4], first.biases["encoder.0"][..., :4])
    assert not state["exp_avg.vae.encoder.0.weight"][0, :, :4].any()


@pytest.mark.parametrize(("name", "kept"), [("td3bc", [0.05, 1.0]), ("iql", [0.05, 1.0]), ("bcq", [0.05])])
def test_restored_learner_goes_on_bit_for_bit(transitions, kept, name):
    algorithm = make(name)
    seeds, others = [0, 1][: len(kept)], [5, 6][: len(kept)]
    masks = random_masks(algorithm, seeds, kept)
    through, _ = train(algorithm, transitions, seeds, masks, updates=2)
    data, randomness = ReplayBuffer(transitions), Randomness("training", others)
    restored = Learner(initial_networks(algorithm, others), algorithm, masks, updates=10)
    restored.restore([through.agent_state(i) for i in range(len(kept))], 2, masks)

    batch = data.sample(randomness, 100)
    for learner in (through, restored):
        for whole in (algorithm.delay == 1, True):
            learner.update(batch, Randomness("training", others), whole)

    for i in range(len(kept)):
        expected, own = through.agent_state(i), restored.agent_state(i)
        assert all(torch.equal(tensor, own[name]) for name, tensor in expected.items())


@pytest.mark.parametrize("execution", ["masked", "sparse"])
def test_weights_that_grow_begin_at_zero_with_moments_of_zero(execution, transitions):
    """Units of a sparse network that lead nowhere now have moments of zero, and targets like themselves."""
    algorithm = make("bcq")
    masks, others = (random_masks(algorithm, [seed], [0.05]) for seed in (0, 1))
    learner, _ = train(algorithm, transitions, [0], masks, updates=3, execution=execution)
    before = learner.agent_state(0)
    learner.change_masks(others)
    after = learner.agent_state(0)
    assert before.keys() == after.keys()
    for key, tensor in after.items():
        kind, network, parameter = key.split(".", 2)
        layer, _, part = parameter.rpartition(".")
        kept = others[network][layer] if part == "weight" else torch.ones_like(tensor, dtype=torch.bool)
        idle = after[f"network.{network}.{parameter}"] if kind == "target" else torch.zeros(())
        same = tensor == before[key] * kept
        if part == "weight" and kind != "target":
            assert not tensor[kept & ~masks[network][layer]].any(), key
        assert (same if kind == "network" or execution == "masked" else same | (tensor == idle)).all(), key
    assert all(optimizer.steps == 3 for optimizer in learner.optimizers.values())


def test_sparse_execution_under_other_masks_is_that_of_masked_networks(transitions):
    """By the losses of the fifth update. Parameters of units that lead nowhere may differ."""
    algorithm = make("bcq")
    masks, others = (random_masks(algorithm, [seed], [0.05]) for seed in (0, 1))
    ends = []
    for execution in ("masked", "sparse"):
        learner, _ = train(algorithm, transitions, [0], masks, updates=3, execution=execution)
        learner.change_masks(others)
        data, randomness = ReplayBuffer(transitions), Randomness("further", [0])
        for _ in range(5):
            losses = learner.update(data.sample(randomness, 100), randomness)
        ends.append({term: float(loss) for term, loss in losses.items()})
    assert ends[1] == pytest.approx(ends[0], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("execution", ["masked", "sparse"])
def test_gradients_of_pruned_weights_are_finite_differences(execution, transitions):
    algorithm = make("bcq")
    masks = random_masks(algorithm, [0], [0.05])
    learner, _ = train(algorithm, transitions, [0], masks, updates=2, execution=execution)
    batch = ReplayBuffer(transitions).sample(Randomness("batch", [0]), 100)
    gradients = learner.gradients(batch, Randomness("noise", [0]))
    assert gradients.keys() == masks.keys()
    whole = {network: held.copy() for network, held in learner.whole(0).items()}
    targets = learner.in_full()["target"]
    for network, loss in algorithm.losses(whole, targets, batch, Randomness("noise", [0])):
        for layer, g in gradients[network].items():
            pruned = g.masked_fill(masks[network][layer], 0).abs()
            at, ε = pruned.argmax(), 1e-2
            values = []
            for step in (ε, -ε):
                θ = whole[network].weights[layer].clone()
                θ.view(-1)[at] += step
                terms = loss(whole[network].with_weights(whole[network].weights | {layer: θ}))
                values.append(sum(float(term.double().sum()) for term in terms.values()))
            difference = (values[0] - values[1]) / (2 * ε)
            assert difference == pytest.approx(float(g.view(-1)[at]), rel=0.15, abs=2e-5), (network, layer)
