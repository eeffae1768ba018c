"""Statistics over a few runs: estimates with stratified bootstrap intervals (Agarwal et al. 2021).

*Deep Reinforcement Learning at the Edge of the Statistical Precipice*, NeurIPS 2021. Scores are arrays of
shape (M, N): for each of M environments, the scores of N runs, one per seed. The functions that take scores
also accept leading axes, for resamples. :func:`paired` compares two kinds of runs of one environment, seed by
seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import scipy  # imports scipy.stats, which takes a second, at its first use: configurations import this file
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

Array = NDArray[np.float64]
MIN_SEEDS = 3
"""Least number of seeds for an interval. Two seeds have only three different resamples, so that their
interval would extend from one score to the other."""


@dataclass(frozen=True)
class BootstrapConfig:
    """How intervals are estimated."""

    resamples: Annotated[int, Ge(1)] = 10_000
    """Number of resamples for each estimate. The more, the less its bounds depend on `seed`."""
    confidence: Annotated[float, Gt(0), Lt(1)] = 0.95
    """Confidence level of every interval."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the resamples, which are the same for every agent."""


def interquartile_mean(scores: Array) -> Array:
    """Mean of the middle half of all M·N runs, (..., M, N) to (...).

    A quarter of the runs, rounded down, is left out at either end; for three or fewer runs it is the mean.
    """
    runs = scores.reshape(*scores.shape[:-2], -1)
    return scipy.stats.trim_mean(runs, 0.25, axis=-1)


def retention(pruned: Array, dense: Array) -> Array:
    """Share of the score that pruning leaves: mean over environments of pruned/dense; (..., M, N) to (...).

    `pruned` and `dense` are interquartile means of an environment's runs. They are divided environment by
    environment: if runs were pooled over environments, the middle half of the pruned runs might be of other
    environments than the middle half of the dense runs, and the ratio might lie outside the range of the
    environments' ratios. The result is
    meaningful only if every environment's dense mean is above zero.
    """
    return (_of_each_environment(pruned) / _of_each_environment(dense)).mean(axis=-1)


def _of_each_environment(scores: Array) -> Array:
    """Interquartile mean of each environment's runs, (..., M, N) to (..., M)."""
    return interquartile_mean(scores[..., np.newaxis, :])


def performance_profile(scores: Array, thresholds: Array) -> Array:
    """Fraction of runs that score more than each of T thresholds, (..., M, N) to (T, ...)."""
    return np.stack([(scores > threshold).mean(axis=(-2, -1)) for threshold in thresholds])


def bootstrap_interval(
    statistic: Callable[..., Array], *scores: Array, config: BootstrapConfig
) -> tuple[Array, Array] | None:
    """Percentile interval of `statistic(*scores)` by the stratified bootstrap; None below :data:`MIN_SEEDS`.

    Environments are the strata: a resample draws, for each environment on its own, N of its N seeds with
    replacement. Several arrays of scores are paired: the same seeds are drawn from each. Agents with the same
    seed share the order of their data, the noise and the initial weights, so the seed is the unit that is
    repeated. Where their scores rise and fall together, pairing narrows the interval of a ratio; where they
    don't, it changes nothing on average.

    With few seeds, such intervals are too narrow. In simulation, 95 % intervals for the interquartile mean of
    normally distributed scores contained the true value in 75, 90 and 94 % of 4,000 cases with 3, 5 and 10
    seeds of one environment, and in 85 and 92 % with 3 and 5 seeds of three environments. For the difference
    between two interquartile means, it was 75 and 90 % with 3 and 5 seeds of one environment; for that
    between two means, 82 % with 5.

    Returns:
        the lower and the upper bound, each of the statistic's shape without the axis of resamples.
    """
    environments, seeds = scores[0].shape
    if seeds < MIN_SEEDS:
        return None

    def of_resamples(*drawn: NDArray[np.int64], **_axis: int) -> Array:
        indices = np.stack(drawn, axis=-2)
        return statistic(*(each[np.arange(environments)[:, None], indices] for each in scores))

    interval = scipy.stats.bootstrap(
        [np.arange(seeds)] * environments,
        of_resamples,
        n_resamples=config.resamples,
        confidence_level=config.confidence,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(config.seed),
    ).confidence_interval
    return interval.low, interval.high


@dataclass(frozen=True)
class Paired:
    """A difference or a ratio of two means over the same seeds; without intervals below :data:`MIN_SEEDS`."""

    value: float
    seeds: int
    low: float | None = None
    """Lower bound by Student's t: of the mean of the seeds' differences, or Fieller's (1954) of the ratio."""
    high: float | None = None
    bootstrap_low: float | None = None
    """Lower bound by the percentile bootstrap over seeds."""
    bootstrap_high: float | None = None
    p: float | None = None
    """Two-sided p-value by Student's t of the hypothesis that the true value is the threshold."""
    bootstrap_p: float | None = None
    """The same by the bootstrap: twice the share of resamples on the smaller side of the threshold."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both bounds by Student's t, if there are any."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def paired(
    own: Array, other: Array, config: BootstrapConfig, *, ratio: bool = False, threshold: float = 0
) -> Paired:
    """Compare the means of two kinds of runs of the same N ≥ 1 seeds, two (N,) arrays.

    Runs with the same seed share initial weights, noise and the order of data, so the seed is the unit. With
    few seeds, intervals by t are wide and those by the bootstrap too narrow (:func:`bootstrap_interval`): a
    conclusion should need both.

    Args:
        ratio: estimate `own` / `other` instead of `own` - `other`. A ratio has no interval where the mean of
            `other` itself can't be told from zero.
        threshold: the value that the p-values test.
    """
    compared = np.divide if ratio else np.subtract
    value = float(compared(own.mean(), other.mean()))
    interval = _fieller(own, other, config) if ratio else _t_interval(own - other, config)
    if interval is None:
        return Paired(value, len(own))
    # "The ratio is τ" says the same as "the mean of own - τ · other is zero".
    tested = own - threshold * other if ratio else own - other - threshold
    drawn = np.random.default_rng(config.seed).integers(len(own), size=(config.resamples, len(own)))
    resampled = compared(own[drawn].mean(axis=1), other[drawn].mean(axis=1))
    tail = (1 - config.confidence) / 2
    bounds = np.quantile(resampled, [tail, 1 - tail])
    # The sample is counted as one more resample on either side, as no p-value is zero.
    smaller = 1 + min((resampled <= threshold).sum(), (resampled >= threshold).sum())
    bootstrap_p = min(1.0, float(2 * smaller / (1 + config.resamples)))
    return Paired(value, len(own), *interval, float(bounds[0]), float(bounds[1]), _t_p(tested), bootstrap_p)


def _quantile_of_t(count: int, config: BootstrapConfig) -> float:
    return float(scipy.stats.t.ppf((1 + config.confidence) / 2, count - 1))


def t_half_width(spread: float, count: int, config: BootstrapConfig) -> float:
    """Half the interval, by Student's t, of the mean of `count` values whose sample deviation is `spread`."""
    return _quantile_of_t(count, config) * spread / count**0.5


def _t_interval(values: Array, config: BootstrapConfig) -> tuple[float, float] | None:
    if len(values) < MIN_SEEDS:
        return None
    half = t_half_width(values.std(ddof=1), len(values), config)
    return float(values.mean() - half), float(values.mean() + half)


def _t_p(values: Array) -> float:
    """Two-sided p-value of a mean of zero. Values without any spread are taken at their word."""
    error = values.std(ddof=1) / len(values) ** 0.5
    if error == 0:
        return float(values.mean() == 0)
    return float(2 * scipy.stats.t.sf(abs(values.mean()) / error, len(values) - 1))


def _fieller(own: Array, other: Array, config: BootstrapConfig) -> tuple[float, float] | None:
    """The ratios ρ for which a t-test does not reject that the mean of own - ρ · other is zero.

    These ρ lie between the roots of a ρ² - 2 b ρ + c, unless `other`'s mean may be zero (a ≤ 0).
    """
    if len(own) < MIN_SEEDS:
        return None
    t2 = _quantile_of_t(len(own), config) ** 2 / len(own)
    (own_var, covariance), (_, other_var) = np.cov(own, other)
    a = other.mean() ** 2 - t2 * other_var
    b = own.mean() * other.mean() - t2 * covariance
    c = own.mean() ** 2 - t2 * own_var
    if a <= 0:
        return None
    root = max(0.0, b**2 - a * c) ** 0.5
    return float((b - root) / a), float((b + root) / a)


def mean_interval(values: Array, config: BootstrapConfig, *, threshold: float = 0) -> Paired:
    """Mean of one value per seed, (N,), with its intervals, as :func:`paired`."""
    return paired(values, np.zeros_like(values), config, threshold=threshold)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of a table for their number, in their order (Holm 1979).

    Conclusions from adjusted values below 0.05 are all right together in at least 95 % of tables.
    """
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.minimum(1, np.maximum.accumulate(factors * np.asarray(p_values, dtype=float)[order]))
    return [float(adjusted[rank]) for rank in np.argsort(order)]


def variance_components(scores: Array) -> tuple[float, float, float]:
    """Standard deviations between rows, between columns, and of the rest, from a table of (D, S) scores.

    The model is score = mean + row + column + rest, each random; estimates are those of the two-way analysis
    of variance without repetition (Searle et al. 1992, section 4.5), and zero where it finds less than that.
    """
    rows, columns = scores.shape
    of_rows, of_columns = scores.mean(axis=1, keepdims=True), scores.mean(axis=0, keepdims=True)
    rest = ((scores - of_rows - of_columns + scores.mean()) ** 2).sum() / ((rows - 1) * (columns - 1))
    between_rows = of_rows.var(ddof=1) - rest / columns
    between_columns = of_columns.var(ddof=1) - rest / rows
    row, column, remaining = (float(max(0, each) ** 0.5) for each in (between_rows, between_columns, rest))
    return row, column, remaining
