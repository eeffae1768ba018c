from dataclasses import astuple

import numpy as np
import pytest
import torch

from singleshot.rl.data.replay import Normalizer, Randomness, ReplayBuffer
from singleshot.rl.networks import initialize, mlp


def test_states_have_zero_mean_and_unit_variance(transitions):
    raw, normalized = (
        ReplayBuffer(transitions, normalize_states=wanted).sample(Randomness("test", [0]), 500)
        for wanted in (False, True)
    )
    mean, std = (transitions.observations.mean(axis=0), transitions.observations.std(axis=0, ddof=1))
    for before, after in ((raw.state, normalized.state), (raw.next_state, normalized.next_state)):
        np.testing.assert_allclose(after.numpy(), (before.numpy() - mean) / (std + 1e-3), atol=1e-5)
    assert torch.equal(raw.action, normalized.action)


def test_one_state_is_normalised_to_zero():
    normalizer = Normalizer.of(torch.tensor([[3.0, -2.0]]))
    assert normalizer(torch.tensor([3.0, -2.0])).tolist() == [0, 0]
    assert normalizer.scale.tolist() == pytest.approx([1e-3, 1e-3])


def test_a_batch_is_of_transitions_of_the_dataset(transitions):
    batch = ReplayBuffer(transitions).sample(Randomness("test", [0, 1]), 50)
    for agent in range(2):
        for state, action, reward, next_state, not_done in zip(
            *(part[agent].numpy() for part in astuple(batch)), strict=True
        ):
            (i,) = (transitions.observations == state).all(axis=1).nonzero()[0]
            assert (transitions.actions[i] == action).all()
            assert transitions.rewards[i] == reward
            assert (transitions.next_observations[i] == next_state).all()
            assert transitions.terminals[i] == (not_done == 0)


def test_a_folded_network_computes_of_raw_states_what_it_computed_of_normalized_ones():
    states = 10 * torch.randn(1000, 5) ** 3 + 100
    normalizer = Normalizer.of(states)
    network = initialize("test", {"a": (7, 50), "b": (50, 2)}, seeds=[0, 1])
    network.weights["a"][:, ::2] = 0
    state, action = states[:20].expand(2, -1, -1), torch.randn(2, 20, 2)

    folded = normalizer.fold(network, ["a"])

    expected = mlp(network, ("a", "b"), torch.cat([normalizer(state), action], dim=-1))
    torch.testing.assert_close(
        mlp(folded, ("a", "b"), torch.cat([state, action], dim=-1)), expected, rtol=1e-4, atol=1e-4
    )
    assert (folded.weights["a"][:, ::2] == 0).all()
    assert torch.equal(folded.weights["b"], network.weights["b"])
