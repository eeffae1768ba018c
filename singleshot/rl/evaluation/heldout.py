"""Losses of trained agents on transitions that they were not trained on."""

from collections.abc import Iterator

import torch

from singleshot.rl.agents import Agent
from singleshot.rl.data.replay import Batch, ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.randomness import Randomness

CHUNK = 1000
"""Number of transitions that are computed at once."""


def heldout_losses(agent: Agent, transitions: Transitions, seed: int = 0) -> dict[str, float]:
    """Means of the terms of an agent's losses over `transitions`, and `action_error`.

    `action_error` is the mean squared difference of the agent's actions from those in the data, whose
    coordinates are within [-1, 1]; all algorithms have it. As target networks are not saved, the networks
    stand in for them. `seed` is the seed of all noise.
    """
    algorithm, networks = agent.algorithm, agent.networks
    randomness = Randomness("held-out", [seed])
    sums: dict[str, float] = {}
    with torch.no_grad():
        for batch in _chunks(transitions):
            size = batch.state.shape[1]
            terms = {
                name: float(value)
                for network, loss in algorithm.losses(networks, networks, batch, randomness)
                for name, value in loss(networks[network]).items()
            }
            noise = randomness.normal(size, *algorithm.noise_shape)
            actions = algorithm.act(networks, batch.state, noise)
            terms["action_error"] = float((actions - batch.action).square().mean())
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + size * value
    return {name: total / len(transitions) for name, total in sums.items()}


def _chunks(transitions: Transitions) -> Iterator[Batch]:
    data = ReplayBuffer(transitions)
    for start in range(0, data.size, CHUNK):
        yield data.rows(torch.arange(start, min(start + CHUNK, data.size))[None])
