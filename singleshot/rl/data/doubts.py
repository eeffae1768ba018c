"""What is doubtful in a user's data: it is used, and one line says so."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from singleshot.rl.actions import TOLERANCE
from singleshot.rl.data.arrays import largest

LARGE_REWARD = 1e6
"""Rewards of a thousand times the largest in D4RL's environments."""
LARGEST_CLIPPED = 2.0
"""Actions up to here are clipped to [-1, 1], as the simulator does; larger ones have another range."""


@dataclass
class Doubts:
    """The doubts about one dataset."""

    origin: Path | str
    found: list[str] = field(default_factory=list)

    def add(self, doubt: str) -> None:
        """Note a doubt, once."""
        if doubt not in self.found:
            self.found.append(doubt)

    def told(self) -> tuple[str, ...]:
        """All doubts, after one line in the log."""
        if self.found:
            logging.getLogger(__name__).warning("%s: used, though %s", self.origin, "; ".join(self.found))
        return tuple(self.found)

    def check_signal(self, rewards: NDArray, terminals: NDArray) -> None:
        """Doubt data from which no value can be learned: (N,) rewards that are all 0, mostly terminals."""
        if len(rewards) > 1 and not rewards.any():
            self.add("all 'rewards' are 0: only behaviour cloning can learn from it")
        if len(terminals) > 1 and terminals.mean() > 0.5:
            many = "every step is a terminal" if terminals.all() else "most steps are terminals"
            self.add(f"{many}, after which nothing counts (are these masks, 1 - done?)")

    def check_rewards(self, rewards: NDArray) -> None:
        """Doubt large rewards."""
        if largest(rewards) > LARGE_REWARD:
            self.add(f"'rewards' reach {largest(rewards):.2g}")

    def clip_actions(self, actions: NDArray) -> NDArray:
        """The same actions, clipped to [-1, 1] if a few are a little beyond."""
        size = np.abs(actions)
        if 1 + TOLERANCE < size.max(initial=0) <= LARGEST_CLIPPED and np.median(size) <= 1:
            self.add(f"{(size > 1).mean():.1%} of 'actions' are beyond [-1, 1] and were clipped")
            return np.clip(actions, -1, 1)
        return actions
