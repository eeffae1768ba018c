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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasks.data.images import read_rgb
from tasks.job import Event, Job, Metrics, per_job
from tasks.pruning.variant import variant_name
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
class Variant:
    """One optimisation of a study."""

    label: str
    history: pandas.DataFrame
    directory: Path
    diverged: bool


@per_job
def draw_style_figures(job: Job) -> Iterator[Event]:
    """Draw the figures in `FIGURES` of a job's studies, as `<study>_<what>.png`.

    Also draw the figures of pruned networks, `pruning_<style>.png` and `pruning_<style>_pictures.png`, if
    there are any.

    Inputs: `studies` (csv) and `pictures`, a directory with `<study>/<backbone>-<loss>-<optimizer>/` for each
    optimisation, which contains `picture.png`, `content.png`, `style.png` and `summary.json` (only `diverged`
    is read). A study that was not run is not drawn; the metric `figures_of_<study>`, the number of its
    figures, is then 0. `pruning` (csv) and `pruned`, a directory with `<style>/photo.png` and
    `<style>/<variant>.png`, are as the stage measure_pruned_styles writes them.

    Raises:
        UserError: a picture is missing or damaged.
    """
    studies = pandas.read_csv(job.inputs["studies"])
    drawn = dict.fromkeys((f"figures_of_{study}" for study in VARIED), 0.0)
    for (study, what), draw in FIGURES.items():
        rows = studies[studies["study"] == study]
        if len(rows):
            figure = draw(_variants(rows, VARIED[study], job.inputs["pictures"] / study))
            save_png(figure, job.params.profile, job.output / f"{study}_{what}.png")
            drawn[f"figures_of_{study}"] += 1
    for name, figure in _pruned_figures(job.inputs["pruning"], job.inputs["pruned"]):
        save_png(figure, job.params.profile, job.output / f"{name}.png")
    yield Metrics(0, drawn)


def _variants(rows: pandas.DataFrame, varied: str, pictures: Path) -> list[Variant]:
    variants = []
    for directory, label, history in histories_of(rows, varied):
        diverged = json.loads((pictures / directory / "summary.json").read_text())["diverged"]
        variants.append(Variant(label, history, pictures / directory, diverged))
    return variants


def histories_of(rows: pandas.DataFrame, varied: str) -> Iterator[tuple[str, str, pandas.DataFrame]]:
    """Directory, label and rows of each picture of a study, in the order of the study's rows.

    The label names the setting that the study varies, and any other setting that differs.
    """
    columns = ["backbone", "loss", "optimizer"]
    labelled = [column for column in columns if column == varied or rows[column].nunique() > 1]
    for names, history in rows.groupby(columns, sort=False):
        yield "-".join(names), ", ".join(LABELS.get(n, n) for n in history[labelled].iloc[0]), history


def draw_histories(title: str, variants: Sequence[Variant]) -> Figure:
    """Total loss by iteration."""
    figure, axis = pyplot.subplots(figsize=(7, 4))
    diverged = [variant.label for variant in variants if variant.diverged]
    plot_histories(axis, {variant.label: variant.history for variant in variants}, diverged)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.suptitle(f"{title}, {_size(variants)}")
    return figure


def plot_histories(axis: Axes, histories: Mapping[str, pandas.DataFrame], diverged: Collection[str]) -> None:
    """Plot total loss by iteration, on a logarithmic scale that fits the optimisations that converged."""
    for i, (label, history) in enumerate(histories.items()):
        ran_off = label in diverged
        if ran_off:
            label += f" (diverged: {history['total_loss'].max():.0e} after {history['iteration'].max()})"
        # With alternating dashes, equal curves (such as those of smooth L1 and Huber) are both visible.
        style = ":" if ran_off else ("-", "--")[i % 2]
        colour = SERIES[i % len(SERIES)]
        axis.plot(history["iteration"], history["total_loss"], style, color=colour, label=label)
    axis.set_yscale("log")
    converged = [history["total_loss"] for label, history in histories.items() if label not in diverged]
    if converged:
        losses = pandas.concat(converged)
        axis.set_ylim(losses.min() / 2, losses.max() * 5)
    axis.set_xlabel("iteration (evaluations of loss and gradient)")
    axis.set_ylabel("total loss")


def draw_seconds(title: str, variants: Sequence[Variant]) -> Figure:
    """Draw how long each optimisation took."""
    figure, axis = pyplot.subplots(figsize=(7, 4))
    plot_seconds(axis, {variant.label: variant.history for variant in variants})
    axis.grid(axis="x", alpha=0.3)
    figure.suptitle(f"{title}, {_size(variants)}")
    return figure


def plot_seconds(axis: Axes, histories: Mapping[str, pandas.DataFrame]) -> None:
    """Plot a bar for each history: its total seconds, labelled with its number of iterations."""
    last = [history.iloc[-1] for history in histories.values()]
    colours = [SERIES[i % len(SERIES)] for i in range(len(histories))]
    bars = axis.barh(list(histories), [row["seconds"] for row in last], color=colours, height=0.6)
    labels = [f"{number(row['seconds'])} s, {row['iteration']} iterations" for row in last]
    axis.bar_label(bars, labels, padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.45)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("seconds")


def draw_pictures(title: str, variants: Sequence[Variant]) -> Figure:
    """Draw the photo, the painting and each optimised picture."""
    first = variants[0].directory
    pictures = {"content": first / "content.png", "style": first / "style.png"}
    for variant in variants:
        caption = f"{variant.label} (diverged)" if variant.diverged else variant.label
        pictures[caption] = variant.directory / "picture.png"
    # At most 11 inches wide, which keeps the file below 1 MB although its pictures are noisy.
    figure, axes = pyplot.subplots(1, len(pictures), figsize=(11, 11 / len(pictures) + 0.6))
    for axis, (caption, path) in zip(axes, pictures.items(), strict=True):
        axis.imshow(read_rgb(path).permute(1, 2, 0).numpy())
        axis.set_title(caption)
        axis.axis("off")
    figure.suptitle(f"{title}, {_size(variants)}")
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
FIGURES: dict[tuple[str, str], Callable[[Sequence[Variant]], Figure]] = {
    ("backbones", "history"): partial(draw_histories, "Figure 2: loss by backbone"),
    ("backbones", "pictures"): partial(draw_pictures, "Figure 3: pictures by backbone"),
    ("losses", "seconds"): partial(draw_seconds, "Figure 4: runtime by loss function"),
    ("losses", "history"): partial(draw_histories, "Section V.C: loss by loss function"),
    ("optimizers", "history"): partial(draw_histories, "Figure 5: loss by optimiser"),
    ("optimizers", "pictures"): partial(draw_pictures, "Figure 6: pictures by optimiser"),
}
"""Functions that draw a figure, by study and by what is shown. Numbers of figures are the report's."""


def _size(variants: Sequence[Variant]) -> str:
    sizes = sorted({int(size) for variant in variants for size in variant.history["size_px"]})
    return f"{', '.join(map(str, sizes))} px"
