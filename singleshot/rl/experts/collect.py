"""Rollouts of an expert: the default source of data, which needs no internet connection.

D4RL's data was sampled from stochastic policies; a deterministic policy gets Gaussian action noise instead.
In one or two of 100 episodes with noise, HalfCheetah's expert ends on its back or loses its gait. How many
such failed episodes agents learn from is decided here (:func:`mix`); otherwise it would be an accident of the
seed.
"""

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from singleshot.errors import UserError
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
SHARE = 2 / 3
"""An episode fails if its return is below this share of the mean return of the expert without noise. With
noise, 3 of 250 episodes of HalfCheetah are below; 5 are more than a sixth below the median, the others less
than a fifteenth. Hopper's returns are spread out, and 5 % are below."""
PATIENCE = 1000
"""Number of successive rollouts among which one of the wanted kind has to be."""


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

    def start(made: gymnasium.Env) -> _Episode:
        return _Episode(made, next(numbers), action_noise, seed)

    running = [start(make_environment(environment)) for _ in range(width)]
    finished: dict[int, Episode] = {}
    following = 0
    while True:
        with blas.limit(limits=1):
            actions = policy(np.stack([rollout.observation for rollout in running]))
        for i, (rollout, action) in enumerate(zip(running, actions, strict=True)):
            if rollout.step(action):
                finished[rollout.number] = rollout.episode()
                running[i] = start(rollout.environment)
        while following in finished:
            yield finished.pop(following)
            following += 1


class _Episode:
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


@dataclass(frozen=True)
class Rollout:
    """One of an expert's episodes."""

    number: int
    episode: Episode
    failed: bool


class Draw(Iterator[Rollout]):
    """An expert's rollouts, one after another, and which of those played so far failed."""

    def __init__(self, episodes: Iterator[Episode], usual_return: float) -> None:
        """`usual_return` is the mean return of the expert without noise."""
        self.episodes, self.threshold = episodes, SHARE * usual_return
        self.played, self.failed = 0, dict[int, float]()
        """Number of episodes played, and the returns of those that failed, by number."""

    def __next__(self) -> Rollout:
        episode, number = next(self.episodes), self.played
        self.played += 1
        if (return_ := float(episode.rewards.sum())) < self.threshold:
            self.failed[number] = return_
        return Rollout(number, episode, number in self.failed)

    def failures(self, used: Collection[int]) -> dict[str, Any]:
        """What a dataset's card says about failed episodes, if the data have the rollouts `used`."""
        return {
            "threshold": self.threshold,
            "played": self.played,
            "used": {number: own for number, own in self.failed.items() if number in used},
            "left_out": {number: own for number, own in self.failed.items() if number not in used},
        }


def mix(rollouts: Iterator[Rollout], fraction: float, transitions: int) -> Iterator[Rollout]:
    """Choose rollouts, of which `fraction` are failed, evenly spread, for data of `transitions` steps.

    Of the first n, ⌊n · fraction⌋ are failed. Failed ones and others each come in the order of `rollouts`.
    Nothing is made up: a kind that is rarer in `rollouts` than wanted takes more rollouts.

    Raises:
        UserError: :data:`PATIENCE` successive rollouts are all of the kind that is not wanted.
    """
    waiting: dict[bool, deque[Rollout]] = {True: deque(), False: deque()}
    kept = {True: 0, False: 0}
    """Steps that have waited: of either kind, no more than `transitions` can be of use."""
    for chosen in itertools.count():
        wanted = _count(chosen + 1, fraction) > _count(chosen, fraction)
        searched = 0
        while not waiting[wanted]:
            if searched == PATIENCE:
                raise UserError(
                    f"offline_rl.data.failed_episodes is {fraction:g}, but of {PATIENCE:,} successive "
                    f"episodes of the expert {'none' if wanted else 'every one'} failed; with null, episodes "
                    "are used as they come"
                )
            rollout, searched = next(rollouts), searched + 1
            if kept[rollout.failed] < transitions:
                waiting[rollout.failed].append(rollout)
                kept[rollout.failed] += len(rollout.episode)
        yield waiting[wanted].popleft()


def _count(episodes: int, fraction: float) -> int:
    """⌊episodes · fraction⌋ of the decimal fraction that was meant, as 100 · 0.29 is 28.999999999999996."""
    return int(round(episodes * fraction, 6))


def returns(expert: Expert, episodes: int, action_noise: float, seed: int) -> Returns:
    """Undiscounted returns of `episodes` whole episodes in the expert's environment."""
    environment = LOCOMOTION[expert.card.environment]
    rollouts = roll_out(expert.act, environment, action_noise, seed, width=min(LOCKSTEP, episodes))
    totals = np.array([episode.rewards.sum() for episode in itertools.islice(rollouts, episodes)])
    score = environment.score(float(totals.mean()))
    return Returns(round(float(totals.mean()), 1), round(float(totals.std()), 1), round(score, 2))
