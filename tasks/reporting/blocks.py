"""What the page is made of, and how numbers are written on it. The template turns each into HTML."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

NOT_GIVEN = "–"
MOST_PICTURES = 6
"""In a row."""


@dataclass(frozen=True)
class Panel:
    """One picture or chart of a figure."""

    source: str
    """A data URI."""
    alt: str
    title: str = ""
    video: str = ""
    """A data URI; `source` is then the picture that stands for it where it doesn't play."""


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    label: str
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class Figure:
    """Panels that are read together."""

    kind: ClassVar[str] = "figure"
    caption: str
    panels: Sequence[Panel]
    legend: Sequence[Key] = ()
    of: str = ""
    """The report's own figure that this one stands for."""
    data: str = ""
    """The table that has its numbers, by its path."""
    panel: str = "chart"
    """What they are, which decides their width: `chart`, `picture` or `wide`."""

    @property
    def columns(self) -> int:
        """Panels in a row, where there is room for them."""
        if self.panel == "wide":
            return 2
        if self.panel == "picture":
            return len(self.panels) if len(self.panels) < MOST_PICTURES else 3
        return 2 if len(self.panels) in {1, 2, 4} else 3


@dataclass(frozen=True)
class Table:
    """Rows of text; columns of numbers are those whose name is in `numbers`."""

    kind: ClassVar[str] = "table"
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    of: str = ""
    numbers: Sequence[str] = ()
    data: str = ""
    """The table that has all of it, by its path."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Caution:
    """What a reader must know before believing a number."""

    kind: ClassVar[str] = "caution"
    text: str


@dataclass(frozen=True)
class NotRun:
    """A figure or table whose results are not there."""

    kind: ClassVar[str] = "not-run"
    what: str
    how: str
    of: str = ""


Block = Figure | Table | Text | Caution | NotRun


@dataclass(frozen=True)
class Section:
    """A question, its answer in a sentence, what shows it, and what only some want to see."""

    anchor: str
    title: str
    answer: str
    blocks: Sequence[Block]
    details: Sequence[Block] = ()


@dataclass(frozen=True)
class Headline:
    """A number that the page opens with."""

    value: str
    interval: str
    """How sure it is, or how far it goes."""
    what: str
    section: str
    """The anchor of the section that has more."""


@dataclass(frozen=True)
class Opening:
    """The first screen: something to look at, and what came out."""

    panel: Panel | None
    caption: str
    numbers: Sequence[Headline]


@dataclass(frozen=True)
class Download:
    """A table as a file inside the page."""

    path: str
    """The file's path from the repository's root."""
    source: str
    """A data URI."""
    kilobytes: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]


def number(value: float, digits: int = 3) -> str:
    """To so many significant digits, thousands apart: 1234567 as `1,230,000`, 0.01234 as `0.0123`."""
    if not math.isfinite(value):
        return NOT_GIVEN
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -5 < magnitude < 9:
        return f"{value:.{digits - 1}e}"
    rounded = round(value, digits - 1 - magnitude)
    return f"{rounded:,.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


def written_as(value: float, values: Mapping[str, float], digits: int = 3) -> list[str]:
    """The names of those that are written as `value` is. If several are as the best, none of them wins."""
    return [name for name, other in values.items() if number(other, digits) == number(value, digits)]


def percent(fraction: float) -> str:
    """A fraction as whole percents: 0.953 as `95 %`, which no line breaks."""
    return f"{100 * fraction:.0f} %" if math.isfinite(fraction) else NOT_GIVEN


def listing(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def count(n: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def duration(seconds: float) -> str:
    """`48 seconds`, `12 minutes`, `3.4 hours`."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
