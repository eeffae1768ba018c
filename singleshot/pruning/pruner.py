"""What a pruner is: a score for each weight; the weights with the highest scores are kept.

The module `masks.py` decides how many weights are kept, in which layers and in how many rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from singleshot.pruning.objective import Objective, Scores, Weights

ScoreFunction = Callable[[Objective, Weights], Scores]


def name_of(method: str | ScoreFunction) -> str:
    """The name of a pruner, or of a function that scores weights."""
    return method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)


@dataclass(frozen=True)
class Pruner:
    """A score function, and what its paper computes scores on."""

    score: ScoreFunction
    batch_size: int = 100
    """Number of transitions; as SNIP's in Arnob et al. 2021, section 4."""
    iterations: int = 1
    """Number of rounds of scoring and pruning; as in its paper."""
    needs_flow: bool = False
    """Whether it reads the objective's `flow`, for which :func:`singleshot.prune` copies the model."""
