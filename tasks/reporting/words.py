"""Numbers, lists and tables in words, as the page has them."""

import math
from collections.abc import Callable, Iterable, Sequence

from singleshot.pruning.variant import percentage

NOT_GIVEN = "–"
Row = dict[str, str]
"""A row of a table: its cells by the titles of their columns."""


def without_constants(rows: Sequence[Row]) -> tuple[Sequence[Row], list[str]]:
    """The rows without columns of one value, and these columns in words, for the caption to name them."""
    if len(rows) < 2:
        return rows, []
    constant = {title: cell for title, cell in rows[0].items() if len({row[title] for row in rows}) == 1}
    named = [f"{title}: {cell}" for title, cell in constant.items()]
    kept = [{title: cell for title, cell in row.items() if title not in constant} for row in rows]
    return kept, [each for each in named if not each.endswith(f" {NOT_GIVEN}")]


def number(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits: 1234567 as `1,230,000`, -0.01234 as `−0.0123`."""
    if not math.isfinite(value):
        return NOT_GIVEN
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -5 < magnitude < 9:
        return "−" * bool(value < 0) + f"{abs(value):.{digits - 1}e}"
    rounded = round(value, digits - 1 - magnitude)
    written = f"{rounded:,.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"
    return written.replace("-", "−")


def two_digits(value: float) -> str:
    """Write a number with two significant digits."""
    return number(value, 2)


def points(value: float) -> str:
    """Write a difference of scores with its sign and two digits: -12.3 as `−12`, 1.25 as `+1.2`."""
    return ("+" if value > 0 else "") + two_digits(value)


def pace(times: float) -> str:
    """Write how fast something is relatively: 3.06 as `3.1 times as fast`, 0.049 as `20 times slower`."""
    if not math.isfinite(times):
        return NOT_GIVEN
    factor = two_digits(max(times, 1 / times))
    return "as fast" if factor == "1.0" else f"{factor} times {'as fast' if times > 1 else 'slower'}"


def percent(fraction: float) -> str:
    """Write a fraction as a whole percentage with a no-break space: 0.953 as `95 %`."""
    return f"{100 * fraction:.0f} %".replace("-", "−") if math.isfinite(fraction) else NOT_GIVEN


def exact_percent(fraction: float) -> str:
    """Write a fraction as a percentage of up to six digits: 0.995 as `99.5 %`."""
    return f"{percentage(fraction)} %"


def interval(low: float, high: float, write: Callable[[float], str] = number) -> str:
    """Write two bounds: `1.00 to 2.00`."""
    return f"{write(low)} to {write(high)}" if math.isfinite(low) and math.isfinite(high) else NOT_GIVEN


def listing(words: Iterable[str]) -> str:
    """Join words: `a`, `a and b`, `a, b and c`."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def count(n: int, noun: str) -> str:
    """Write a number with its noun: `1 seed`, `2 seeds`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def duration(seconds: float) -> str:
    """Write a time in a suitable unit: `48 seconds`, `12 minutes`, `3.4 hours`."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
