from dataclasses import astuple, replace

import pytest
import torch

from singleshot.rl.data.replay import Randomness, ReplayBuffer

SEEDS = [0, 1, 0]


@pytest.fixture
def draws(transitions):
    """Two datasets of different scales."""
    other = replace(
        transitions,
        observations=3 * transitions.observations[::-1] + 1,
        next_observations=3 * transitions.next_observations[::-1] + 1,
        actions=transitions.actions[::-1].copy(),
        rewards=transitions.rewards[::-1].copy(),
        terminals=transitions.terminals[::-1].copy(),
    )
    return [transitions, other]


@pytest.mark.parametrize("normalize_states", [False, True])
def test_each_agent_gets_the_batches_of_its_own_dataset(draws, normalize_states):
    buffer = ReplayBuffer.of_agents([*draws, draws[0]], normalize_states=normalize_states)
    randomness = Randomness("test", SEEDS)
    batches = [buffer.sample(randomness, 20) for _ in range(2)]
    for agent, (seed, position) in enumerate(zip(SEEDS, [0, 1, 0], strict=True)):
        alone = ReplayBuffer(draws[position], normalize_states=normalize_states)
        randomness = Randomness("test", [seed])
        for batch in batches:
            expected = alone.sample(randomness, 20)
            for part, own in zip(astuple(batch), astuple(expected), strict=True):
                assert torch.equal(part[agent], own[0])
        if normalize_states:
            state = torch.randn(3, 5, 11)
            assert torch.equal(buffer.normalizer(state)[agent], alone.normalizer(state)[agent])
            assert torch.equal(buffer.normalizer.of_agent(agent).mean, alone.normalizer.mean)


def test_datasets_of_different_sizes(draws):
    shorter = draws[0].part(0, 9)
    with pytest.raises(ValueError, match="equal numbers of transitions"):
        ReplayBuffer.of_agents([draws[0], shorter])
