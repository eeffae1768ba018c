"""Statistics over a few runs: estimates with stratified bootstrap intervals (Agarwal et al. 2021).

*Deep Reinforcement Learning at the Edge of the Statistical Precipice*, NeurIPS 2021. Scores are arrays of
shape (M, N): of each of M tasks the scores of N runs, one a seed. The functions of scores also take leading
axes, of resamples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import scipy  # imports scipy.stats, which takes a second, when that is first used: configurations import this
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

Array = NDArray[np.float64]
MIN_SEEDS = 3
"""For an interval. Two seeds have three resamples, whose interval is from one score to the other."""


@dataclass(frozen=True)
class BootstrapConfig:
    """How intervals are estimated."""

    resamples: Annotated[int, Ge(1)] = 10_000
    """Of each estimate. The more, the less its bounds depend on `seed`."""
    confidence: Annotated[float, Gt(0), Lt(1)] = 0.95
    """Confidence level of every interval."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the resamples, which are the same for every agent."""


def interquartile_mean(scores: Array) -> Array:
    """Mean of the middle half of all M·N runs, (..., M, N) to (...).

    A quarter of the runs, rounded down, is left out at either end; of three or fewer runs it is the mean.
    """
    runs = scores.reshape(*scores.shape[:-2], -1)
    return scipy.stats.trim_mean(runs, 0.25, axis=-1)


def retention(pruned: Array, dense: Array) -> Array:
    """What pruning leaves of the score: mean over tasks of pruned/dense, two (..., M, N) to (...).

    Both are interquartile means of a task's runs. They are divided task by task: pooled over tasks, the
    middle half of the pruned runs may be of other tasks than that of the dense ones, and the ratio outside
    those of all tasks. It means something where every task's dense one is above zero.
    """
    ratios = interquartile_mean(pruned[..., np.newaxis, :]) / interquartile_mean(dense[..., np.newaxis, :])
    return ratios.mean(axis=-1)


def performance_profile(scores: Array, thresholds: Array) -> Array:
    """Fraction of runs that score more than each of T thresholds, (..., M, N) to (T, ...)."""
    return np.stack([(scores > threshold).mean(axis=(-2, -1)) for threshold in thresholds])


def bootstrap_interval(
    statistic: Callable[..., Array], *scores: Array, config: BootstrapConfig
) -> tuple[Array, Array] | None:
    """Percentile interval of `statistic(*scores)` by the stratified bootstrap; None below :data:`MIN_SEEDS`.

    Tasks are the strata: a resample draws, for each task on its own, N of its N seeds with replacement.
    Several arrays of scores are paired: of each it draws the same seeds. Agents of a seed share the order of
    their data, the noise and the initial weights, and what is repeated is the seed, with all of them. Where
    their scores go up and down together the interval of a ratio is narrower for it; where they don't, pairing
    changes nothing on average.

    With few seeds such intervals are too narrow. Those of 95 % for the interquartile mean of normally
    distributed scores held the true value in 75, 91 and 94 % of 4,000 cases with 3, 5 and 10 seeds of one
    task, and in 85 and 92 % with 3 and 5 seeds of three tasks.

    Returns:
        the lower and the upper bound, each of the statistic's shape without the axis of resamples.
    """
    tasks, seeds = scores[0].shape
    if seeds < MIN_SEEDS:
        return None

    def of_resamples(*drawn: NDArray[np.int64], **_axis: int) -> Array:
        indices = np.stack(drawn, axis=-2)
        return statistic(*(each[np.arange(tasks)[:, None], indices] for each in scores))

    interval = scipy.stats.bootstrap(
        [np.arange(seeds)] * tasks,
        of_resamples,
        n_resamples=config.resamples,
        confidence_level=config.confidence,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(config.seed),
    ).confidence_interval
    return interval.low, interval.high
