"""Episodes in which an expert falls short of its usual return, and data with a given fraction of them.

In one or two of 100 episodes with noise, HalfCheetah's expert ends on its back or loses its gait. How many
such episodes agents learn from is decided here; otherwise it would be an accident of the seed.
"""

import itertools
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from singleshot.errors import UserError
from singleshot.rl.data.transitions import Episode

SHARE = 2 / 3
"""An episode fails if its return is below this share of the mean return of the expert without noise. With
noise, 3 of 250 episodes of HalfCheetah are below; 5 are more than a sixth below the median, the others less
than a fifteenth. Hopper's returns are spread out, and 5 % are below."""
PATIENCE = 1000
"""Number of successive rollouts among which one of the wanted kind has to be."""


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
        """What a dataset's card says of failed episodes, if the data have the rollouts `used`."""
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
