"""Returns of trained agents: all episodes of a stack of agents in lockstep, with actions in one batch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from singleshot.errors import UserError
from singleshot.rl.actions import ActionBounds
from singleshot.rl.agents import Agent
from singleshot.rl.algorithm import Algorithm
from singleshot.rl.data.replay import Normalizer, ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.environments import Environment
from singleshot.rl.evaluation.episode import PlayedEpisode
from singleshot.rl.evaluation.lockstep import Environments
from singleshot.rl.networks import AnyNetwork
from singleshot.rl.randomness import Randomness

FIRST_EPISODE = 100
"""Environment seed of an evaluation's first episode (the authors' BCQ adds 100 to its seed); the next ones
have 101, 102, …. All agents begin from the same states in every evaluation, so that differences between their
returns are due to the agents."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How agents are scored while they train."""

    episodes: Annotated[int, Ge(1)] = 10
    """Number of episodes of every evaluation; see also `final_episodes`."""
    final_episodes: Annotated[int, Ge(1)] | None = None
    """Number of episodes of the evaluation after the last update, whose scores are compared: the standard
    error of an agent's score falls with the square root of this number. With null, there are as many
    as in the other evaluations."""

    @property
    def final(self) -> "EvaluationConfig":
        """How agents are scored after the last update."""
        return replace(self, episodes=self.final_episodes or self.episodes)


@dataclass(frozen=True)
class Score:
    """What an agent's episodes of one evaluation returned."""

    return_mean: float
    return_std: float
    """Population standard deviation over the episodes."""
    d4rl_score: float
    episodes: int

    @classmethod
    def of(cls, returns: NDArray[np.float64], environment: Environment) -> "Score":
        """The score of `returns`, one for each episode."""
        mean = float(returns.mean())
        return cls(mean, float(returns.std()), environment.score(mean), len(returns))


def make_environments(
    environment: Environment, config: EvaluationConfig, agents: int, cores: int = 1
) -> Environments:
    """Make an environment per agent and episode, for use in every evaluation, stepped on `cores` cores."""
    seeds = range(FIRST_EPISODE, FIRST_EPISODE + config.episodes)
    return Environments(environment, agents, seeds, cores)


def play(
    algorithm: Algorithm,
    networks: Mapping[str, AnyNetwork],
    environments: Environments,
    randomness: Randomness,
    normalizer: Normalizer | None = None,
    bounds: ActionBounds | None = None,
) -> NDArray[np.float64]:
    """Undiscounted return of one episode in each of `environments`: (K, episodes).

    Episodes end one by one, when they terminate or reach the time limit, and the batch shrinks with them. A
    `normalizer` is for networks in training; saved networks take raw states. `bounds` are the actions that
    the agents' -1 and 1 stand for, if not the environment's own, to which actions are then limited.

    Raises:
        UserError: the environment answers a finite action with NaN or infinity.
    """
    observations = environments.reset()  # (K, episodes, state)
    running = np.ones(observations.shape[:2], dtype=bool)
    returns, steps = np.zeros(running.shape), 0
    while running.any():
        # Noise for all episodes, even ended ones: an episode's noise must not depend on which others ended.
        noise = randomness.normal(observations.shape[1], *algorithm.noise_shape)
        episodes = np.flatnonzero(running.any(axis=0))
        state = torch.from_numpy(observations[:, episodes]).to(randomness.device)
        state = normalizer(state) if normalizer else state
        actions = algorithm.act(networks, state, noise[:, episodes]).cpu().numpy()
        if bounds and bounds != environments.bounds:
            own = environments.bounds.to_unit(bounds.from_unit(actions))
            actions = own.clip(-1, 1).astype(actions.dtype)
        agent, i = np.nonzero(running[:, episodes])
        live = agent, episodes[i]
        observations[live], rewards, ended = environments.step(*live, actions[agent, i])
        returns[live] += rewards
        running[live] = ~ended
        steps += 1
        finite = np.isfinite(rewards) & np.isfinite(observations[live]).all(axis=1)
        if not finite.all() and np.isfinite(actions).all():
            raise UserError(
                f"environment {environments.environment.id}: step {steps} of episode {live[1][~finite][0]} "
                "has a reward or state of NaN or infinity; correct the environment"
            )
    return returns


def evaluate(
    agent: Agent, environment: Environment, episodes: int = 10, seed: int = 0
) -> tuple[NDArray[np.float64], PlayedEpisode]:
    """Undiscounted returns of a trained agent over some episodes, and one of them, of median return.

    `seed` is the seed of the policy's noise. The agent's actions are limited to the environment's bounds.
    """
    environments = make_environments(environment, EvaluationConfig(episodes), agents=1)
    environments.check(agent.algorithm.state_size, agent.algorithm.action_size)
    bounds = agent.bounds or ActionBounds.unit(agent.algorithm.action_size)
    networks, randomness = agent.acting_networks(), Randomness("evaluation", [seed])
    returns = play(agent.algorithm, networks, environments, randomness, bounds=bounds)
    return returns[0], environments.median_episodes()[0]


CHUNK = 1000
"""Number of transitions that are computed at once."""


def heldout_losses(agent: Agent, transitions: Transitions, seed: int = 0) -> dict[str, float]:
    """Means of the terms of an agent's losses over `transitions`, and `action_error`.

    `action_error` is the mean squared difference of the agent's actions from those in the data, whose
    coordinates are within [-1, 1]; all algorithms have it. As target networks are not saved, the networks
    stand in for them. `seed` is the seed of all noise.
    """
    algorithm, networks = agent.algorithm, agent.networks
    data, randomness = ReplayBuffer(transitions), Randomness("held-out", [seed])
    sums: dict[str, float] = {}
    with torch.no_grad():
        for start in range(0, data.size, CHUNK):
            batch = data.rows(torch.arange(start, min(start + CHUNK, data.size))[None])
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
