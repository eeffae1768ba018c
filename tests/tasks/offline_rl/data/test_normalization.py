import numpy as np
import torch

from tasks.offline_rl.data.normalization import Normalizer
from tasks.offline_rl.data.replay import ReplayBuffer
from tasks.offline_rl.networks import initialize, mlp


def test_states_have_zero_mean_and_unit_variance(transitions):
    raw, normalized = ReplayBuffer(transitions), ReplayBuffer(transitions, normalize_states=True)
    state = normalized.state.numpy()
    np.testing.assert_allclose(state.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(state.std(axis=0), 1, atol=5e-3)
    scale = raw.state.numpy().std(axis=0, ddof=1) + 1e-3
    expected = (raw.next_state.numpy() - raw.state.numpy().mean(axis=0)) / scale
    np.testing.assert_allclose(normalized.next_state.numpy(), expected, atol=1e-5)
    assert torch.equal(raw.action, normalized.action)


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
