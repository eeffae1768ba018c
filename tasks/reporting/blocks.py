"""The blocks of the page, which the template turns into HTML, and the format of numbers on it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from singleshot.pruning.variant import percentage

NOT_GIVEN = "–"
MOST_PICTURES = 6
"""From this number of pictures on, a figure has three in a row; fewer are all in one row."""


@dataclass(frozen=True)
class Panel:
    """One picture or chart of a figure."""

    source: str
    """Data URI of the picture or chart."""
    alt: str
    title: str = ""
    video: str = ""
    """Data URI of a video, if any; `source` is then the picture to show where the video doesn't play."""


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
    """The figure of the report that this one corresponds to."""
    data: str = ""
    """Path of the table with the figure's numbers."""
    panel: str = "chart"
    """Kind of the panels, which decides their width: `chart`, `picture` or `wide`."""

    @property
    def columns(self) -> int:
        """Number of panels in a row, if there is room for them."""
        if self.panel == "wide":
            return 2
        if self.panel == "picture":
            return len(self.panels) if len(self.panels) < MOST_PICTURES else 3
        return 2 if len(self.panels) in {1, 2, 4} else 3


@dataclass(frozen=True)
class Table:
    """Rows of text; `numbers` names the columns that contain numbers."""

    kind: ClassVar[str] = "table"
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    of: str = ""
    numbers: Sequence[str] = ()
    data: str = ""
    """Path of the CSV file with the complete table."""

    def varied(self) -> "Table":
        """The table without its columns of one value, which the caption names instead."""
        if len(self.rows) < 2:
            return self
        same = [len(set(cells)) == 1 for cells in zip(*self.rows, strict=True)]
        named = [
            f"{name} {cell}" for name, cell, one in zip(self.head, self.rows[0], same, strict=True) if one
        ]
        named = [each for each in named if not each.endswith(f" {NOT_GIVEN}")]

        def kept(cells: Sequence[str]) -> list[str]:
            return [cell for cell, one in zip(cells, same, strict=True) if not one]

        caption = f"{self.caption}. In all rows: {', '.join(named)}" if named else self.caption
        return replace(self, caption=caption, head=kept(self.head), rows=[kept(row) for row in self.rows])


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Caution:
    """A warning that a reader must know before trusting a number."""

    kind: ClassVar[str] = "caution"
    text: str


@dataclass(frozen=True)
class NotRun:
    """A figure or table whose results are missing."""

    kind: ClassVar[str] = "not-run"
    what: str
    how: str
    of: str = ""


Block = Figure | Table | Text | Caution | NotRun


@dataclass(frozen=True)
class Section:
    """A question, its answer in a sentence, the blocks that show it, and details for those who want them."""

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
    """Confidence interval of the number, or the range of the values behind it."""
    what: str
    section: str
    """Anchor of the section that has more."""


@dataclass(frozen=True)
class Opening:
    """The first screen: a picture or video, and the headline numbers."""

    panel: Panel | None
    caption: str
    numbers: Sequence[Headline]


@dataclass(frozen=True)
class Download:
    """A table as a file inside the page."""

    path: str
    """The file's path from the repository's root."""
    source: str
    """Data URI of the file."""
    kilobytes: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]


def number(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits: 1234567 as `1,230,000`, 0.01234 as `0.0123`."""
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
    """Names of the values that are written like `value`. If several are written like the best, none wins."""
    return [name for name, other in values.items() if number(other, digits) == number(value, digits)]


def percent(fraction: float) -> str:
    """Write a fraction as a whole percentage with a no-break space: 0.953 as `95 %`."""
    return f"{100 * fraction:.0f} %" if math.isfinite(fraction) else NOT_GIVEN


def exact_percent(fraction: float) -> str:
    """Write a fraction as a percentage of up to six digits: 0.995 as `99.5 %`."""
    return f"{percentage(fraction)} %"


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
