import math

import pytest

from tasks.reporting.words import (
    count,
    duration,
    interval,
    listing,
    number,
    pace,
    percent,
    points,
    without_constants,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"), (1, "1.00"), (0.1, "0.100"), (0.012345, "0.0123"), (9.996, "10.0"), (999.6, "1,000"),
        (1234567, "1,230,000"), (-4.5678, "−4.57"), (-1.5e-7, "−1.50e-07"), (1.5e-7, "1.50e-07"),
        (math.nan, "–"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_a_number_has_three_digits_that_count(value, written):
    assert number(value) == written


@pytest.mark.parametrize(
    ("times", "written"),
    [
        (3.06, "3.1 times as fast"), (0.049, "20 times slower"), (0.5, "2.0 times slower"), (1, "as fast"),
        (0.98, "as fast"), (25.4, "25 times as fast"), (math.nan, "–"),
    ],
)  # fmt: skip
def test_a_pace_is_never_a_fraction(times, written):
    assert pace(times) == written


def test_intervals_are_written_in_one_way():
    assert interval(1, 2.5) == "1.00 to 2.50"
    assert interval(-42.4, 5.12, points) == "−42 to +5.1"
    assert interval(math.nan, 5) == "–"


def test_words():
    assert percent(0.953) == "95\u00a0%"
    assert [listing(["a"]), listing(["a", "b"]), listing(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert [count(1, "seed"), count(2000, "seed")] == ["1 seed", "2,000 seeds"]
    assert [duration(48), duration(725), duration(9000)] == ["48 seconds", "12 minutes", "2.5 hours"]


def test_a_column_of_one_value_is_said_once():
    rows = [
        {"environment": "Hopper", "format": "raw", "seeds": "–", "MB": "1"},
        {"environment": "Hopper", "format": "fp16", "seeds": "–", "MB": "2"},
    ]
    kept = [{"format": "raw", "MB": "1"}, {"format": "fp16", "MB": "2"}]
    assert without_constants(rows) == (kept, ["environment: Hopper"])
    assert without_constants(rows[:1]) == (rows[:1], [])
