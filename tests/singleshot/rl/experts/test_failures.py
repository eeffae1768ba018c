import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from singleshot.errors import UserError
from singleshot.rl.data.transitions import Episode
from singleshot.rl.experts.failures import Rollout, judge, mix


def episode(return_: float, steps: int = 10) -> Episode:
    rewards = np.full(steps, return_ / steps)
    return Episode(np.zeros((steps + 1, 1)), np.zeros((steps, 1)), rewards, terminated=True)


def every_fifth_fails() -> Iterator[Rollout]:
    """Without end; numbers 4, 9, 14, … have failed."""
    return judge((episode(10 if number % 5 == 4 else 100) for number in itertools.count()), threshold=50)


def test_an_episode_below_the_threshold_has_failed() -> None:
    judged = list(judge([episode(50), episode(49.9), episode(-3)], threshold=50))
    assert [(rollout.number, rollout.failed) for rollout in judged] == [(0, False), (1, True), (2, True)]
    assert judged[1].return_ == pytest.approx(49.9)


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


@pytest.mark.parametrize(("return_", "fraction", "message"), [(1, 0, "every one"), (100, 0.1, "none")])
def test_a_kind_that_does_not_occur(return_: float, fraction: float, message: str) -> None:
    rollouts = judge((episode(return_) for _ in itertools.count()), threshold=50)
    with pytest.raises(UserError, match=f"offline_rl.data.failed_episodes is .* {message} failed"):
        list(mix(rollouts, fraction, 1000))
