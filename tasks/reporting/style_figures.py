"""Task: Figures 2 to 6 of Shen and Wang, from histories of losses and pictures.

Columns of `studies.csv`, which has one row for each iteration of an optimisation:

| column | |
|---|---|
| `study` | the comparison: `backbones`, `losses` or `optimizers` are drawn here, others are ignored |
| `backbone`, `loss`, `optimizer` | what made the picture; a study varies the one it is named after |
| `size_px` | short side of the picture |
| `iteration` | evaluations of loss and gradient so far; 0 is the initial picture |
| `content_loss`, `style_loss` | eq. 1 and 2 of the report, not weighted |
| `total_loss` | the weighted sum that is optimised |
| `seconds` | seconds of optimisation so far |
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from singleshot.io.images import read_rgb
from singleshot.pruning.variant import variant_name
from tasks.job import Event, Job, Metrics, per_job
from tasks.reporting.blocks import exact_percent, number
from tasks.reporting.look import DENSE, OTHER, PRUNERS, SERIES, save_png
from tasks.reporting.look import name as word

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


@per_job
def draw_style_figures(job: Job) -> Iterator[Event]:
    """Draw the figures in `FIGURES` of a job's studies, as `<study>_<what>.png`.

    Also draw the figures of pruned networks, `pruning_<style>.png` and `pruning_<style>_pictures.png`, if
    there are any.

    Inputs: `studies` (csv) and `pictures`, a directory with `<study>/<backbone>-<loss>-<optimizer>/` for each
    optimisation, which contains `picture.png`, `content.png`, `style.png` and `summary.json` (only `diverged`
    is read). A study that was not run is not drawn; the metric `figures_of_<study>`, the number of its
    figures, is then 0. `pruning` (csv) and `pruned`, a directory with `<style>/photo.png` and
    `<style>/<variant>.png`, are as the stage measure_styles writes them.

    Raises:
        UserError: a picture is missing or damaged.
    """
    studies = pandas.read_csv(job.inputs["studies"])
    drawn = dict.fromkeys((f"figures_of_{study}" for study in VARIED), 0.0)
    for (study, what), draw in FIGURES.items():
        rows = studies[studies["study"] == study]
        if len(rows):
            figure = draw(optimised(rows, VARIED[study], (job.inputs["pictures"] / study).joinpath))
            save_png(figure, job.params.profile, job.output / f"{study}_{what}.png")
            drawn[f"figures_of_{study}"] += 1
    for name, figure in _pruned_figures(job.inputs["pruning"], job.inputs["pruned"]):
        save_png(figure, job.params.profile, job.output / f"{name}.png")
    yield Metrics(0, drawn)


def optimised(rows: pandas.DataFrame, varied: str, find: Callable[[str], Path | None]) -> list[Optimised]:
    """The pictures of a study that varies `varied`, in the order of its rows, without those that lack a file.

    `find` returns the path of a file such as `vgg19-mse-lbfgs/picture.png`, or None.
    """
    columns = ["backbone", "loss", "optimizer"]
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


def draw_histories(title: str, pictures: Sequence[Optimised]) -> Figure:
    """Total loss by iteration."""
    figure, axis = pyplot.subplots(figsize=(7, 4))
    plot_histories(axis, pictures)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.suptitle(f"{title}, {size_of(pictures)}")
    return figure


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
    converged = [each.history["total_loss"] for each in pictures if not each.diverged]
    if converged:
        losses = pandas.concat(converged)
        axis.set_ylim(losses.min() / 2, losses.max() * 5)
    axis.set_xlabel("iteration (evaluations of loss and gradient)")
    axis.set_ylabel("total loss")


def draw_seconds(title: str, pictures: Sequence[Optimised]) -> Figure:
    """Draw how long each optimisation took."""
    figure, axis = pyplot.subplots(figsize=(7, 4))
    plot_seconds(axis, pictures)
    axis.grid(axis="x", alpha=0.3)
    figure.suptitle(f"{title}, {size_of(pictures)}")
    return figure


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


def draw_pictures(title: str, pictures: Sequence[Optimised]) -> Figure:
    """Draw the photo, the painting and each optimised picture."""
    shown = {"content": pictures[0].content, "style": pictures[0].style}
    shown |= {each.title: each.picture for each in pictures}
    # At most 11 inches wide, which keeps the file below 1 MB although its pictures are noisy.
    figure, axes = pyplot.subplots(1, len(shown), figsize=(11, 11 / len(shown) + 0.6))
    for axis, (caption, path) in zip(axes, shown.items(), strict=True):
        _show(axis, caption, path)
        axis.axis("off")
    figure.suptitle(f"{title}, {size_of(pictures)}")
    return figure


PRUNED_MEASURES = {
    "style_ratio": "style ratio",
    "content_loss": "content loss",
    "ssim": "SSIM",
    "onnxruntime_compacted_seconds": "seconds, compacted",
}
"""Columns of `pruning.csv` that are drawn against sparsity for pruned networks, with their labels."""


def _pruned_figures(table: Path, pictures: Path) -> Iterator[tuple[str, Figure]]:
    for style, rows in pandas.read_csv(table).groupby("style", sort=False):
        yield f"pruning_{style}", draw_pruned(f"Pruned networks of style {style}", rows)
        yield f"pruning_{style}_pictures", draw_pruned_pictures(str(style), rows, pictures / str(style))


def variant(row: pandas.Series) -> str:
    """The name of the variant in a row of `pruning.csv`, e.g. `dense` or `snip-0.98`."""
    return variant_name(row["pruner"], row["sparsity"])


def network_label(row: pandas.Series) -> str:
    """The variant as readers see it, e.g. `dense` or `SNIP 98 %`."""
    return DENSE if row["pruner"] == DENSE else f"{word(row['pruner'])} {exact_percent(row['sparsity'])}"


def plot_pruned(axis: Axes, rows: pandas.DataFrame, column: str) -> None:
    """Plot a column of `pruning.csv` against sparsity: a line for each pruner, from the dense network on."""
    dense = rows[rows["pruner"] == DENSE]
    of_dense = dense["onnxruntime_seconds" if column == "onnxruntime_compacted_seconds" else column]
    for pruner, own in rows[rows["pruner"] != DENSE].groupby("pruner", sort=False):
        line = own.sort_values("sparsity")
        axis.plot(
            [*dense["sparsity"], *line["sparsity"]],
            [*of_dense, *line[column]],
            "o-",
            color=PRUNERS.get(str(pruner), OTHER),
            label=word(str(pruner)),
        )
    # An SSIM may be negative.
    axis.set_ylim(1.1 * min(0, rows[column].min()), 1.1 * max(rows[column].max(), of_dense.max()))
    axis.set_xlabel("fraction of weights pruned")
    axis.set_ylabel(PRUNED_MEASURES[column])


def draw_pruned(title: str, rows: pandas.DataFrame) -> Figure:
    """Draw the measures in `PRUNED_MEASURES` side by side."""
    figure, axes = pyplot.subplots(1, len(PRUNED_MEASURES), figsize=(11, 3.6))
    for axis, column in zip(axes, PRUNED_MEASURES, strict=True):
        plot_pruned(axis, rows, column)
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.suptitle(title)
    return figure


def draw_pruned_pictures(style: str, rows: pandas.DataFrame, pictures: Path) -> Figure:
    """Draw the photo, and each network's picture of it: a row for each pruner, a column for each sparsity."""
    pruners = [pruner for pruner in dict.fromkeys(rows["pruner"]) if pruner != DENSE]
    sparsities = sorted(set(rows["sparsity"]) - {0})
    columns = 2 + len(sparsities)
    figure, axes = pyplot.subplots(
        len(pruners), columns, figsize=(11, 0.8 * 11 / columns * len(pruners) + 0.6), squeeze=False
    )
    for axis in axes.flat:
        axis.axis("off")
    _show(axes[0, 0], "photo", pictures / "photo.png")
    for _, row in rows.iterrows():
        dense = row["pruner"] == DENSE
        place = (0, 1) if dense else (pruners.index(row["pruner"]), 2 + sparsities.index(row["sparsity"]))
        _show(axes[place], network_label(row), pictures / f"{variant(row)}.png")
    figure.suptitle(f"One photo, stylised by pruned networks of style {style}")
    return figure


def _show(axis: Axes, title: str, path: Path) -> None:
    axis.imshow(read_rgb(path).permute(1, 2, 0).numpy())
    axis.set_title(title)


VARIED = {"backbones": "backbone", "losses": "loss", "optimizers": "optimizer"}
"""The column of `studies.csv` that each study varies."""
FIGURES: dict[tuple[str, str], Callable[[Sequence[Optimised]], Figure]] = {
    ("backbones", "history"): partial(draw_histories, "Figure 2: loss by backbone"),
    ("backbones", "pictures"): partial(draw_pictures, "Figure 3: pictures by backbone"),
    ("losses", "seconds"): partial(draw_seconds, "Figure 4: runtime by loss function"),
    ("losses", "history"): partial(draw_histories, "Section V.C: loss by loss function"),
    ("optimizers", "history"): partial(draw_histories, "Figure 5: loss by optimiser"),
    ("optimizers", "pictures"): partial(draw_pictures, "Figure 6: pictures by optimiser"),
}
"""Functions that draw a figure, by study and by what is shown. Numbers of figures are the report's."""


def size_of(pictures: Sequence[Optimised]) -> str:
    """The short sides of pictures in words, e.g. `512 px`."""
    sizes = sorted({int(size) for each in pictures for size in each.history["size_px"]})
    return f"{', '.join(map(str, sizes))} px"
