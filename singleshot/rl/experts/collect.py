"""Rollouts of an expert: the default source of data, which needs no internet connection.

D4RL's data was sampled from stochastic policies; a deterministic policy gets Gaussian action noise instead.
"""

import itertools
from collections.abc import Callable, Iterator

import gymnasium
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from singleshot.rl.data.transitions import Episode
from singleshot.rl.environments import TIME_LIMIT, EnvironmentVersion, MujocoTask, make_environment

Policy = Callable[[NDArray], NDArray]
"""Observations (n, S) to actions (n, A)."""

LOCKSTEP = 20
"""Number of environments stepped together, so that the policy runs on batches. 100,000 steps are 5 rounds of
20 whole episodes; more environments gain nothing (the policy takes a tenth of the time) and waste more steps
at the end."""


def collect(
    policy: Policy,
    task: MujocoTask,
    version: EnvironmentVersion,
    transitions: int,
    action_noise: float,
    seed: int,
) -> Iterator[Episode]:
    """Episodes 0, 1, 2, … of `policy`, `transitions` steps in all: the last episode is cut to fit.

    An action is the policy's plus Gaussian noise of standard deviation `action_noise`, clipped to [-1, 1].
    Episode k's start and noise depend on (seed, k) alone and episodes come in order, so the number of
    environments in lockstep affects only the rounding of batched products. These products run on one thread,
    which gives equal sums on any number of cores; at this size, two threads took ten times the CPU time of
    one thread.
    """
    blas = ThreadpoolController()
    numbers = itertools.count()

    def start(environment: gymnasium.Env) -> _Rollout:
        return _Rollout(environment, next(numbers), task.action_size, action_noise, seed)

    width = min(LOCKSTEP, -(-transitions // TIME_LIMIT))
    rollouts = [start(make_environment(task, version)) for _ in range(width)]
    finished: dict[int, Episode] = {}
    following, missing = 0, transitions
    while missing > 0:
        with blas.limit(limits=1):
            actions = policy(np.stack([rollout.observation for rollout in rollouts]))
        for i, (rollout, action) in enumerate(zip(rollouts, actions, strict=True)):
            if rollout.step(action):
                finished[rollout.number] = rollout.episode()
                rollouts[i] = start(rollout.environment)
        while following in finished and missing > 0:
            episode = finished.pop(following).first(missing)
            following, missing = following + 1, missing - len(episode)
            yield episode


class _Rollout:
    """One episode while it runs."""

    def __init__(
        self, environment: gymnasium.Env, number: int, action_size: int, action_noise: float, seed: int
    ):
        generator = np.random.default_rng([seed, number])
        self.environment, self.number = environment, number
        self.observation, _ = environment.reset(seed=int(generator.integers(2**31)))
        self._noise = action_noise * generator.standard_normal((TIME_LIMIT, action_size))
        self._observations = [self.observation]
        self._actions: list[NDArray] = []
        self._rewards: list[float] = []
        self._terminated = False

    def step(self, action: NDArray) -> bool:
        """Take one noisy step; return whether the episode is over."""
        action = np.clip(action + self._noise[len(self._actions)], -1, 1).astype(np.float32)
        self.observation, reward, self._terminated, truncated, _ = self.environment.step(action)
        self._observations.append(self.observation)
        self._actions.append(action)
        self._rewards.append(float(reward))
        return self._terminated or truncated

    def episode(self) -> Episode:
        return Episode(
            np.array(self._observations), np.array(self._actions), np.array(self._rewards), self._terminated
        )
