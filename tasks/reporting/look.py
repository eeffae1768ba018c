"""The look of figures: one palette that the colour-blind can tell apart, charts and pictures as data URIs."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import matplotlib.figure
import pandas
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator

from singleshot.io.images import encode_jpeg, read_rgb
from singleshot.pruning.variant import DENSE

matplotlib.use("Agg")

INK, MUTED, RULE = "#1f2933", "#52606d", "#d9dee4"
PRUNERS = {
    DENSE: INK,
    "small": "#d55e00",  # this and the next three, snip-shuffled and erk: Okabe and Ito's palette
    "gradual": "#cc79a7",
    "snip": "#0072b2",
    "grasp": "#e69f00",
    "random": "#8c510a",
    "snip-shuffled": "#56b4e9",
    "grasp-shuffled": "#f3cf8e",
    "erk": "#009e73",
    "magnitude": "#332288",
    "synflow": "#882255",
    "finetuned": "#9a86e0",
    "set": "#7fd0b5",
    "rigl": "#a8a032",
}
"""Colours of pruners, in the order in which they are shown; where the study draws one, it has the same."""
SERIES = ("#641a80", "#f7705c", "#b73779", "#2c115f", "#fe9f6d", "#8c2981")
"""What isn't a pruner is drawn in matplotlib's magma: a colour means one thing on the page."""
OTHER = "#8f969e"
"""A user's own pruner."""
LOOK: dict[Any, Any] = {  # Any: matplotlib's type stubs enumerate all keys
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    # Identifiers inside an SVG are hashes; a fixed salt makes them the same each time.
    "svg.hashsalt": "singleshot",
}
CHART_INCHES = (3.5, 2.5)
"""Width and height of a chart; a phone shows this width without scaling."""
NAMES = {
    "snip": "SNIP",
    "grasp": "GraSP",
    "synflow": "SynFlow",
    "erk": "ERK",
    "small": "narrow dense",
    "finetuned": "magnitude after training",
    "gradual": "gradual magnitude",
    "set": "SET",
    "rigl": "RigL",
    "bc": "BC",
    "bcq": "BCQ",
    "td3bc": "TD3+BC",
    "iql": "IQL",
    "vae": "VAE",
}


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
    """An entry of a legend, and how a series of a chart is drawn."""

    label: str
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class Figure:
    """Panels that are read together; none if there are no results."""

    panels: Sequence[Panel]
    legend: Sequence[Key] = ()
    kind: str = "chart"
    """Kind of the panels, which decides their width: `chart`, `picture`, `wide`, `sheet` or `row`."""
    columns: int = 1
    """Panels of a `row`, which stay side by side at any width."""


@dataclass(frozen=True)
class Chart:
    """How rows are drawn whose columns are `x`, `y`, `series` and, if there are any, `low`, `high`, `label`.

    The kinds are `lines` with bands from low to high; `dots`, where `y` names rows and x has whiskers; and
    `bars`, with their labels.
    """

    kind: Literal["lines", "dots", "bars"]
    x: str
    """What is on the horizontal axis."""
    y: str = ""
    alt: str = ""
    """The chart in words, with a `{}` for its panel."""
    share: str = ""
    """Axes with common limits in all panels: `x`, `y` or `xy`."""
    log: str = ""
    """The axis with a logarithmic scale; `X` for a horizontal one that has zero."""
    mark: float | None = None
    """Where a dashed line crosses the chart, on the horizontal axis."""

    def figure(self, rows: pandas.DataFrame, keys: Mapping[Any, Key], by: Sequence[str] = ()) -> Figure:
        """A panel of each group of rows, which remains a separate picture; equal rows give equal bytes."""
        groups = list(rows.groupby(list(by), sort=False)) if by else [((), rows)] * bool(len(rows))
        drawn = [self.draw(own, keys) for _, own in groups]
        for direction in self.share if drawn else "":
            axes = [figure.axes[0] for figure in drawn]
            lows, highs = zip(*(getattr(axis, f"get_{direction}lim")() for axis in axes), strict=True)
            for axis in axes:
                axis.set(**{f"{direction}lim": (min(lows), max(highs))})
        titles = [", ".join(name(str(word)) for word in group) for group, _ in groups]
        panels = [
            Panel(data_uri("image/svg+xml", _svg(figure)), self.alt.format(title), title)
            for title, figure in zip(titles, drawn, strict=True)
        ]
        legend = [key for series, key in keys.items() if series in set(rows["series"])]
        # A legend of one key says nothing; bars name themselves.
        return Figure(panels, legend if len(legend) > 1 and self.kind != "bars" else ())

    def draw(self, rows: pandas.DataFrame, keys: Mapping[Any, Key]) -> matplotlib.figure.Figure:
        """Draw one panel."""
        places = list(dict.fromkeys(rows["y"]))
        series = [each for each in keys if each in set(rows["series"])]
        height = CHART_INCHES[1] if self.kind == "lines" else 0.8 + 0.36 * len(places)
        with matplotlib.rc_context(LOOK):
            figure = matplotlib.figure.Figure(figsize=(CHART_INCHES[0], height), layout="constrained")
            axis = figure.add_subplot(xlabel=self.x, ylabel=self.y)
            if self.mark is not None:
                axis.axvline(self.mark, color=INK, linewidth=1, linestyle="--")
            for i, each in enumerate(series):
                own, key = rows[rows["series"] == each], keys[each]
                if self.kind == "lines":
                    if "low" in own:
                        bounds = (own["x"], own["low"], own["high"])
                        axis.fill_between(*bounds, color=key.colour, alpha=0.13, lw=0)
                    style = ("--" if key.dashed else "-") + "o" * (own["x"].nunique() < 8)
                    axis.plot(own["x"], own["y"], style, color=key.colour, markersize=4)
                elif self.kind == "dots":
                    at = own["y"].map(places.index) + 0.6 * ((i + 0.5) / len(series) - 0.5)
                    if "low" in own:
                        axis.hlines(at, own["low"], own["high"], color=key.colour, linewidth=2, alpha=0.6)
                    axis.plot(own["x"], at, "o", color=key.colour, markersize=5)
                else:
                    bars = axis.barh(own["y"].map(places.index), own["x"], 0.62, color=key.colour)
                    axis.bar_label(bars, own["label"], padding=3)
                    axis.margins(x=0.3)
            self._set_scales(axis, rows, places)
        return figure

    def _set_scales(self, axis: Axes, rows: pandas.DataFrame, places: Sequence[str]) -> None:
        if self.kind == "lines":
            axis.locator_params(axis="x", nbins=4)  # five labels up to a million would overlap
            axis.xaxis.set_major_formatter("{x:,.0f}")
        else:
            axis.set_yticks(range(len(places)), places)
            axis.set_ylim(len(places) - 0.5, -0.5)
            axis.grid(visible=False, axis="y")
        if self.log == "y":
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(EngFormatter(sep=""))  # 10k: the exponent of 10⁴ is small
            axis.yaxis.set_minor_formatter("")
        elif self.log == "X":
            axis.set_xscale("symlog", linthresh=10, linscale=0.5)
            axis.set_xticks([0, 10, 1_000, 100_000], ["0", "10", "1,000", "100,000"])
            axis.set_xlim(-1, 1.5 * rows["x"].max())
        elif self.log:
            low, high = rows["x"].min() / 1.5, rows["x"].max() * 1.5
            axis.set_xscale("log")
            axis.set_xlim(low, high)
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
            axis.xaxis.set_major_formatter("{x:,g}")
            axis.xaxis.set_minor_formatter("")


def name(word: str) -> str:
    """A name in the tables as readers know it: `SNIP` for `snip`, `SNIP, shuffled` for `snip-shuffled`."""
    own, _, control = word.partition("-")
    return f"{NAMES[own]}, {control.replace('-', ' ')}" if control and own in NAMES else NAMES.get(word, word)


def pruner_keys(pruners: Iterable[str]) -> dict[str, Key]:
    """How each pruner is drawn, in the order of `PRUNERS`."""
    once = ordered(pruners, PRUNERS)
    return {each: Key(name(each), PRUNERS.get(each, OTHER), each == DENSE) for each in once}


def ordered(words: Iterable[str], like: Mapping[str, str]) -> list[str]:
    """Each word once: first the keys of `like` in their order, then the others, sorted."""
    once = set(words)
    return [word for word in like if word in once] + sorted(once - set(like))


def picture(path: Path, alt: str, title: str = "", short_side: int = 220) -> Panel:
    """Make a JPEG panel of a picture file, scaled down to a short side of `short_side` pixels.

    Raises:
        UserError: the file is damaged.
    """
    pixels = read_rgb(path, short_side=short_side, enlarge=False)
    return Panel(data_uri("image/jpeg", encode_jpeg(pixels, quality=82)), alt, title)


def data_uri(media_type: str, content: bytes) -> str:
    """A file's content as an address, so that the page needs no other file."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _svg(figure: matplotlib.figure.Figure) -> bytes:
    svg = io.BytesIO()
    with matplotlib.rc_context(LOOK):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return svg.getvalue()
