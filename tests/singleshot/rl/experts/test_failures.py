import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from singleshot.errors import UserError
from singleshot.rl.data.transitions import Episode
from singleshot.rl.experts.collect import Rollout, mix


def rollout(number: int, failed: bool) -> Rollout:
    return Rollout(number, Episode(np.zeros((11, 1)), np.zeros((10, 1)), np.zeros(10), True), failed)


def every_fifth_fails() -> Iterator[Rollout]:
    """Without end; numbers 4, 9, 14, … have failed."""
    return (rollout(number, number % 5 == 4) for number in itertools.count())


@pytest.mark.parametrize("fraction", [0, 0.01, 0.03, 0.1, 0.29, 0.5])
def test_a_hundred_episodes_have_exactly_the_fraction(fraction: float) -> None:
    chosen = list(itertools.islice(mix(every_fifth_fails(), fraction, 1000), 100))
    assert sum(rollout.failed for rollout in chosen) == round(100 * fraction)
    for failed in (True, False):  # the first ones of either kind, in their order
        numbers = [rollout.number for rollout in chosen if rollout.failed == failed]
        expected = itertools.islice(
            (r.number for r in every_fifth_fails() if r.failed == failed), len(numbers)
        )
        assert numbers == list(expected)


def test_failed_episodes_are_spread_evenly() -> None:
    chosen = itertools.islice(mix(every_fifth_fails(), 0.25, 1000), 12)
    assert [i for i, rollout in enumerate(chosen) if rollout.failed] == [3, 7, 11]


@pytest.mark.parametrize(("failed", "fraction", "message"), [(True, 0, "every one"), (False, 0.1, "none")])
def test_a_kind_that_does_not_occur(failed: bool, fraction: float, message: str) -> None:
    rollouts = (rollout(number, failed) for number in itertools.count())
    with pytest.raises(UserError, match=f"offline_rl.data.failed_episodes is .* {message} failed"):
        list(mix(rollouts, fraction, 1000))
