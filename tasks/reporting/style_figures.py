"""Pictures that were optimised one by one: the histories of their losses, for charts.

Columns of `studies.csv`, which has one row for each iteration of an optimisation:

| column | |
|---|---|
| `study` | the comparison: `backbones`, `losses`, `optimizers` or `paintings`; others are ignored |
| `backbone`, `loss`, `optimizer`, `style` | what made the picture; a study varies the one it is named after |
| `size_px` | short side of the picture |
| `iteration` | evaluations of loss and gradient so far; 0 is the initial picture |
| `content_loss`, `style_loss` | eq. 1 and 2 of the report, not weighted |
| `total_loss` | the weighted sum that is optimised |
| `seconds` | seconds of optimisation so far |
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from tasks.reporting.look import SERIES
from tasks.reporting.words import number

LABELS = {
    "vgg16": "VGG-16",
    "vgg19": "VGG-19",
    "alexnet": "AlexNet",
    "mse": "MSE",
    "l1": "L1",
    "smooth_l1": "smooth L1",
    "huber": "Huber",
    "lbfgs": "L-BFGS",
    "adam": "Adam",
    "sgd": "SGD",
}


@dataclass(frozen=True)
class Optimised:
    """A picture of Version 1 (optimised), with its inputs and the history of its losses."""

    label: str
    """The setting that the study varies, and any other setting that differs."""
    colour: str
    history: pandas.DataFrame
    picture: Path
    content: Path
    style: Path
    summary: Mapping[str, Any]

    @property
    def diverged(self) -> bool:
        """Whether the loss diverged."""
        return bool(self.summary["diverged"])

    @property
    def title(self) -> str:
        """The label, which says so if the loss diverged."""
        return f"{self.label} (diverged)" if self.diverged else self.label


def optimised(rows: pandas.DataFrame, varied: str, find: Callable[[str], Path | None]) -> list[Optimised]:
    """The pictures of a study that varies `varied`, in the order of its rows, without those that lack a file.

    `find` returns the path of a file such as `vgg19-mse-lbfgs-swirls/picture.png`, or None.
    """
    columns = ["backbone", "loss", "optimizer", "style"]
    labelled = [column for column in columns if column == varied or rows[column].nunique() > 1]
    pictures: list[Optimised] = []
    for names, history in rows.groupby(columns, sort=False):
        files = ("picture.png", "content.png", "style.png", "summary.json")
        paths = [path for file in files if (path := find(f"{'-'.join(names)}/{file}"))]
        if len(paths) == len(files):
            made, content, style, summary = paths
            label = ", ".join(LABELS.get(name, name) for name in history[labelled].iloc[0])
            colour, described = SERIES[len(pictures) % len(SERIES)], json.loads(summary.read_text("utf-8"))
            pictures.append(Optimised(label, colour, history, made, content, style, described))
    return pictures


def plot_histories(axis: Axes, pictures: Sequence[Optimised]) -> None:
    """Plot total loss by iteration, on a logarithmic scale that fits the optimisations that converged."""
    for i, each in enumerate(pictures):
        iteration, loss, label = each.history["iteration"], each.history["total_loss"], each.label
        if each.diverged:
            label += f" (diverged: {loss.max():.0e} after {iteration.max()})"
        # With alternating dashes, equal curves (such as those of smooth L1 and Huber) are both visible.
        style = ":" if each.diverged else ("-", "--")[i % 2]
        axis.plot(iteration, loss, style, color=each.colour, label=label)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(EngFormatter(sep=""))  # 10k: the exponent of 10⁴ would be small type
    converged = [each.history["total_loss"] for each in pictures if not each.diverged]
    if converged:
        losses = pandas.concat(converged)
        axis.set_ylim(losses.min() / 2, losses.max() * 5)
    axis.set_xlabel("iteration (evaluations of loss and gradient)")
    axis.set_ylabel("total loss")


def plot_seconds(axis: Axes, pictures: Sequence[Optimised]) -> None:
    """Plot a bar for each picture: its total seconds, labelled with its number of iterations."""
    last = [each.history.iloc[-1] for each in pictures]
    names, colours = [each.label for each in pictures], [each.colour for each in pictures]
    bars = axis.barh(names, [row["seconds"] for row in last], color=colours, height=0.6)
    labels = [f"{number(row['seconds'])} s, {row['iteration']} iterations" for row in last]
    axis.bar_label(bars, labels, padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.45)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("seconds")


VARIED = {"backbones": "backbone", "losses": "loss", "optimizers": "optimizer", "paintings": "style"}
"""The column of `studies.csv` that each study varies."""


def size_of(pictures: Sequence[Optimised]) -> str:
    """The short sides of pictures in words, e.g. `512 px`."""
    sizes = sorted({int(size) for each in pictures for size in each.history["size_px"]})
    return f"{', '.join(map(str, sizes))} px"
