"""The range of actions. Networks act within [-1, 1]; an environment or a robot has its own bounds."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from singleshot.errors import must_be

LARGEST = 1e18
"""Squares of larger numbers exceed single precision, and with them losses and standard deviations."""
TOLERANCE = 1e-5
"""How far beyond its bounds an action may be: enough for float32 rounding, but not for another range."""


@dataclass(frozen=True)
class ActionBounds:
    """The lowest and highest value of each coordinate of an action, which networks know as -1 and 1."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        pairs = zip(self.low, self.high, strict=True)
        right = all(
            -LARGEST <= low <= high <= LARGEST
            and high - low >= 1 / LARGEST
            and np.float32(low) < np.float32(high)
            for low, high in pairs
        )
        wanted = f"a lowest and a larger highest value in float32 for each coordinate, within ±{LARGEST:g}"
        must_be(wanted, right, bounds=(self.low, self.high))

    @classmethod
    def unit(cls, size: int) -> Self:
        """[-1, 1] for each of `size` coordinates."""
        return cls((-1.0,) * size, (1.0,) * size)

    @classmethod
    def of(cls, actions: NDArray) -> Self:
        """The bounds of recorded actions (N, A).

        Actions within [-1, 1] have these bounds. Other actions have the lowest and highest value of each
        coordinate; a coordinate that never changes has its value ± 1.
        """
        size = actions.shape[1]
        if np.abs(actions).max(initial=0) <= 1 + TOLERANCE:
            return cls.unit(size)
        low, high = (np.asarray(f(actions, axis=0), np.float64) for f in (np.min, np.max))
        constant = low == high
        return cls(tuple((low - constant).tolist()), tuple((high + constant).tolist()))

    @property
    def is_unit(self) -> bool:
        """Whether actions are within [-1, 1] as they are."""
        return self == self.unit(len(self.low))

    @property
    def middle(self) -> NDArray[np.float64]:
        """The actions that networks know as 0."""
        return (np.array(self.high) + self.low) / 2

    @property
    def half(self) -> NDArray[np.float64]:
        """Half of each coordinate's range."""
        return (np.array(self.high) - self.low) / 2

    def to_unit(self, actions: NDArray) -> NDArray:
        """Actions (…, A) within these bounds, as networks know them."""
        return actions if self.is_unit else (actions - self.middle) / self.half

    def from_unit(self, actions: NDArray) -> NDArray:
        """The inverse of :meth:`to_unit`."""
        return actions if self.is_unit else (actions * self.half + self.middle).astype(actions.dtype)
