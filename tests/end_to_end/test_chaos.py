"""The same as `python -m benchmarks.chaos`, with five kills of a sweep on Ray."""

import pytest

from benchmarks.chaos import chaos


@pytest.mark.slow
def test_five_random_kills_cost_nothing_that_was_finished():
    with chaos(0, ["ray"]) as running:
        running.disturb(5)
    assert running.tally.kills.total() == 5
    assert set(running.tally.counts().values()) == {0}, running.tally
