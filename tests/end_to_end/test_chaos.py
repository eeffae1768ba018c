"""The same as `python -m benchmarks.chaos`, with five kills on each executor."""

import pytest

from benchmarks.chaos import chaos


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_five_random_kills_cost_nothing_that_was_finished(executor):
    with chaos(0, [executor]) as running:
        running.disturb(5)
    assert running.tally.kills.total() == 5
    assert set(running.tally.counts().values()) == {0}, running.tally
