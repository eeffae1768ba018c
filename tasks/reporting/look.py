"""The look of figures: one palette that the colour-blind can tell apart, charts and pictures as data URIs."""

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure
import pandas
from matplotlib.axes import Axes

from singleshot.io.images import encode_jpeg, read_rgb
from singleshot.pruning.variant import DENSE

matplotlib.use("Agg")

INK, MUTED, RULE = "#1f2933", "#52606d", "#d9dee4"
PRUNERS = {
    DENSE: INK,
    "snip": "#0072b2",  # this and the next six colours are from Okabe and Ito's palette
    "grasp": "#d55e00",
    "random": "#009e73",
    "magnitude": "#cc79a7",
    "synflow": "#e69f00",
    "erk": "#56b4e9",
    "small": "#7b8794",
    "finetuned": "#332288",
    "gradual": "#8c510a",
    "set": "#4cc3a0",
    "rigl": "#b3a125",
}
BOUND = "entropy bound"
"""Bytes at least, were masks and values without any pattern."""
FORMATS = {
    DENSE: INK,
    "coo": "#0072b2",
    "csr_int32": "#56b4e9",
    "packed_raw": "#d55e00",
    "packed_exponents": "#e69f00",
    BOUND: "#cc79a7",
}
RUNTIMES = {
    "torch": INK,
    "torch-compile": "#7b8794",
    "onnxruntime": "#0072b2",
    "openvino-f32": "#d55e00",
    "openvino-bf16": "#e69f00",
    "tvm": "#009e73",
    "iree": "#cc79a7",
    "tensorflow": "#56b4e9",
    "xla": "#8c510a",
}
"""Charts also label rows with their runtime, as more than eight colours cannot be told apart."""
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
OTHER = "#7f7f7f"
LOOK: dict[Any, Any] = {  # Any: matplotlib's type stubs enumerate all keys
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
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
    "small": "small dense",
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
    """Panels that are read together; none if there are no results."""

    panels: Sequence[Panel]
    legend: Sequence[Key] = ()
    kind: str = "chart"
    """Kind of the panels, which decides their width: `chart`, `picture` or `wide`."""

    @property
    def columns(self) -> int:
        """Number of panels in a row, if there is room for them."""
        if self.kind == "wide":
            return 2
        if self.kind == "picture":
            return len(self.panels) if len(self.panels) < MOST_PICTURES else 3
        return 2 if len(self.panels) in {1, 2, 4} else 3


def name(word: str) -> str:
    """A name in the tables as readers know it: `SNIP` for `snip`, `SNIP, shuffled` for `snip-shuffled`."""
    own, _, control = word.partition("-")
    return f"{NAMES[own]}, {control.replace('-', ' ')}" if control and own in NAMES else NAMES.get(word, word)


def pruner_keys(pruners: Iterable[str]) -> list[Key]:
    """The entries of a legend: each pruner once, in the order of `PRUNERS`."""
    return [
        Key(name(pruner), PRUNERS.get(pruner, OTHER), pruner == DENSE) for pruner in ordered(pruners, PRUNERS)
    ]


def ordered(words: Iterable[str], like: Mapping[str, str]) -> list[str]:
    """Each word once: first the keys of `like` in their order, then the others, sorted."""
    once = set(words)
    return [word for word in like if word in once] + sorted(once - set(like))


def by_pruner(rows: pandas.DataFrame) -> Iterator[tuple[str, str, pandas.DataFrame]]:
    """Each pruner in the order of `PRUNERS`, its colour, and its rows."""
    for pruner in ordered(rows["pruner"], PRUNERS):
        yield pruner, PRUNERS.get(pruner, OTHER), rows[rows["pruner"] == pruner]


def chart(
    draw: Callable[[Axes], None], alt: str, title: str = "", inches: tuple[float, float] = CHART_INCHES
) -> Panel:
    """Make an SVG panel of what `draw` draws. Equal drawings give equal bytes."""
    return Panel(data_uri("image/svg+xml", _svg(_drawn(draw, inches))), alt, title)


def charts(
    draw: Callable[..., None],
    rows: pandas.DataFrame,
    by: list[str],
    alt: str,
    share: str = "",
    height: Callable[[pandas.DataFrame], float] = lambda _: CHART_INCHES[1],
) -> list[Panel]:
    """Make a panel of each group of rows; `alt` has a `{}` for each column in `by`.

    Panels have common limits for the axes `share`, `x`, `y` or `xy`. Each remains a picture of its own, so
    that panels can stand side by side or below each other.
    """
    groups = list(rows.groupby(by))
    drawn = [_drawn(partial(draw, rows=own), (CHART_INCHES[0], height(own))) for _, own in groups]
    axes = [figure.axes[0] for figure in drawn]
    for direction in share if axes else "":
        lows, highs = zip(*(getattr(axis, f"get_{direction}lim")() for axis in axes), strict=True)
        for axis in axes:
            axis.set(**{f"{direction}lim": (min(lows), max(highs))})
    return [
        Panel(
            data_uri("image/svg+xml", _svg(figure)),
            alt.format(name(algorithm), *others),
            ", ".join(map(name, (algorithm, *others))),
        )
        for ((algorithm, *others), _), figure in zip(groups, drawn, strict=True)
    ]


def picture(path: Path, alt: str, title: str = "", short_side: int = 220) -> Panel:
    """Make a JPEG panel of a picture file, scaled down to a short side of `short_side` pixels.

    Raises:
        UserError: the file is damaged.
    """
    pixels = read_rgb(path, short_side=short_side, enlarge=False)
    return Panel(data_uri("image/jpeg", encode_jpeg(pixels, quality=82)), alt, title)


def animation(video: Path, still: Path, alt: str, title: str = "") -> Panel:
    """A panel with an MP4 video, and the picture that is shown before the video plays and in print."""
    poster = picture(still, alt, title, short_side=480)
    return replace(poster, video=data_uri("video/mp4", video.read_bytes()))


def data_uri(media_type: str, content: bytes) -> str:
    """A file's content as an address, so that the page needs no other file."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _drawn(draw: Callable[[Axes], None], inches: tuple[float, float]) -> matplotlib.figure.Figure:
    with matplotlib.rc_context(LOOK):
        figure = matplotlib.figure.Figure(figsize=inches, layout="constrained")
        draw(figure.add_subplot())
    return figure


def _svg(figure: matplotlib.figure.Figure) -> bytes:
    svg = io.BytesIO()
    with matplotlib.rc_context(LOOK):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return svg.getvalue()
