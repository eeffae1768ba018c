"""Statistics against hand-computed cases, and intervals against every resample there is."""

import itertools
import math

import numpy as np
import pytest

from tasks.reporting.statistics import BootstrapConfig, bootstrap_interval, interquartile_mean, retention

MANY = BootstrapConfig(resamples=50_000)


def every_resample(*scores):
    """All that the stratified bootstrap may draw, N^(N·M) of the same probability, seeds drawn together."""
    environments, seeds = scores[0].shape
    of_an_environment = list(itertools.product(range(seeds), repeat=seeds))
    for drawn in itertools.product(of_an_environment, repeat=environments):
        yield [
            [
                [each[environment][seed] for seed in seeds_of_environment]
                for environment, seeds_of_environment in enumerate(drawn)
            ]
            for each in scores
        ]


def middle_half(runs):
    """Another implementation of the interquartile mean."""
    ordered = sorted(runs)
    kept = ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]
    return math.fsum(kept) / len(kept)


def enumerated_interval(statistic, *scores):
    """Where the distribution function over all resamples reaches 2.5 and 97.5 %."""
    values = sorted(statistic(*drawn) for drawn in every_resample(*scores))
    return values[math.ceil(0.025 * len(values)) - 1], values[math.ceil(0.975 * len(values)) - 1]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([[7.0]], 7),
        ([[1.0, 2.0]], 1.5),
        ([[1.0, 2.0, 9.0]], 4),  # three runs: nothing is cut off
        ([[100.0, 1.0, 2.0, -50.0]], 1.5),
        ([[1.0, 2.0, 3.0, 4.0, 1000.0]], 3),
        ([[1.0, 100.0], [3.0, 5.0]], 4),  # pooled over environments
        ([[8.0, 7.0, 6.0, 5.0], [4.0, 3.0, 2.0, 1.0]], 4.5),
    ],
)
def test_interquartile_mean_by_hand(scores, expected):
    assert interquartile_mean(np.array(scores)) == pytest.approx(expected)


def test_retention_is_the_mean_of_the_environments_ratios():
    """Were runs pooled, their ratio might lie outside the range of the environments' ratios."""
    dense = np.array([[40.0, 40.0], [90.0, 110.0]])
    pruned = np.array([[20.0, 20.0], [100.0, 120.0]])
    assert retention(pruned, dense) == pytest.approx((0.5 + 1.1) / 2)
    assert retention(dense, dense) == pytest.approx(1)


@pytest.mark.parametrize("shape", [(1, 3), (1, 4), (2, 3)])
def test_the_interval_is_that_of_all_resamples(shape):
    scores = np.random.default_rng(3).normal(50, 20, shape)
    interval = bootstrap_interval(interquartile_mean, scores, config=MANY)
    expected = enumerated_interval(lambda drawn: middle_half(itertools.chain(*drawn)), scores)
    # Values lie as close as this to each other, and of 50,000 draws another one may be next to the quantile.
    assert interval == pytest.approx(expected, abs=1.0 if shape == (2, 3) else 1e-9)


def test_the_interval_of_a_retention_is_that_of_all_pairs_of_resamples():
    rng = np.random.default_rng(1)
    dense = rng.normal(60, 15, (2, 3))
    pruned = dense * 0.8 + rng.normal(0, 5, (2, 3))
    expected = enumerated_interval(
        lambda p, d: np.mean([middle_half(a) / middle_half(b) for a, b in zip(p, d, strict=True)]),
        pruned,
        dense,
    )
    assert bootstrap_interval(retention, pruned, dense, config=MANY) == pytest.approx(expected, abs=0.005)


def test_equal_seeds_give_equal_intervals_and_others_nearly():
    scores = np.random.default_rng(0).normal(50, 20, (2, 5))
    configs = [BootstrapConfig(seed=seed) for seed in (0, 0, 1)]
    first, again, other = (bootstrap_interval(interquartile_mean, scores, config=each) for each in configs)
    assert first == again != other
    assert first == pytest.approx(other, abs=1)


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_have_no_interval(seeds):
    assert bootstrap_interval(interquartile_mean, np.ones((3, seeds)), config=BootstrapConfig()) is None
