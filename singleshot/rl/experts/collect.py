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
from singleshot.rl.environments import LOCOMOTION, Environment, make_environment
from singleshot.rl.experts.policy import Expert, Returns

ExpertFunction = Callable[[NDArray], NDArray]
"""Observations (n, S) to actions (n, A)."""

LOCKSTEP = 20
"""Number of environments stepped together, so that the policy runs on batches. 100,000 steps are 5 rounds of
20 whole episodes; more environments gain nothing (the policy takes a tenth of the time) and waste more steps
at the end."""

ACTION_GRID = 2.0**-15
"""Actions are rounded to multiples of this, 2⁻¹⁶ of their range, before they are played and stored. A
simulation is chaotic: a last bit that another processor rounds otherwise would soon be another episode."""


def roll_out(
    policy: ExpertFunction, environment: Environment, action_noise: float, seed: int, width: int = LOCKSTEP
) -> Iterator[Episode]:
    """Episodes 0, 1, 2, … of `policy` without end, `width` of them stepped together.

    An action is the policy's plus Gaussian noise of standard deviation `action_noise`, clipped to [-1, 1] and
    rounded to :data:`ACTION_GRID`. Episode k depends on (seed, k) alone. The policy runs on one thread: at
    this size, two threads took ten times the CPU time of one thread.
    """
    blas = ThreadpoolController()
    numbers = itertools.count()

    def start(made: gymnasium.Env) -> _Rollout:
        return _Rollout(made, next(numbers), action_noise, seed)

    rollouts = [start(make_environment(environment)) for _ in range(width)]
    finished: dict[int, Episode] = {}
    following = 0
    while True:
        with blas.limit(limits=1):
            actions = policy(np.stack([rollout.observation for rollout in rollouts]))
        for i, (rollout, action) in enumerate(zip(rollouts, actions, strict=True)):
            if rollout.step(action):
                finished[rollout.number] = rollout.episode()
                rollouts[i] = start(rollout.environment)
        while following in finished:
            yield finished.pop(following)
            following += 1


class _Rollout:
    """One episode while it runs."""

    def __init__(self, environment: gymnasium.Env, number: int, action_noise: float, seed: int) -> None:
        generator = np.random.default_rng([seed, number])
        self.environment, self.number = environment, number
        self.observation, _ = environment.reset(seed=int(generator.integers(2**31)))
        steps = environment.spec.max_episode_steps if environment.spec else None
        assert steps is not None, "an expert's environments have a time limit"
        self._noise = action_noise * generator.standard_normal(
            (steps, *(environment.action_space.shape or ()))
        )
        self._observations = [self.observation]
        self._actions: list[NDArray] = []
        self._rewards: list[float] = []
        self._terminated = self._truncated = False

    def step(self, action: NDArray) -> bool:
        """Take one noisy step; return whether the episode is over."""
        noisy = np.clip(action + self._noise[len(self._actions)], -1, 1)
        action = (np.rint(noisy / ACTION_GRID) * ACTION_GRID).astype(np.float32)
        self.observation, reward, self._terminated, self._truncated, _ = self.environment.step(action)
        self._observations.append(self.observation)
        self._actions.append(action)
        self._rewards.append(float(reward))
        return self._terminated or self._truncated

    def episode(self) -> Episode:
        return Episode(
            np.array(self._observations),
            np.array(self._actions),
            np.array(self._rewards),
            self._terminated,
            self._truncated and not self._terminated,
        )


def returns(expert: Expert, episodes: int, action_noise: float, seed: int) -> Returns:
    """Undiscounted returns of `episodes` whole episodes in the expert's environment."""
    environment = LOCOMOTION[expert.card.environment]
    rollouts = roll_out(expert.act, environment, action_noise, seed, width=min(LOCKSTEP, episodes))
    totals = np.array([episode.rewards.sum() for episode in itertools.islice(rollouts, episodes)])
    score = environment.score(float(totals.mean()))
    return Returns(round(float(totals.mean()), 1), round(float(totals.std()), 1), round(score, 2))
