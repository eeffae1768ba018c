"""The study's figures, each as one SVG file."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import matplotlib
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from singleshot.pruning.variant import DENSE
from tasks.reporting.look import INK, LOOK, OTHER, PRUNERS, SERIES, Key, name, pruner_keys
from tasks.reporting.pruning import draw_layers, draw_learning, label_learning, plot_learning
from tasks.reporting.statistics import Paired
from tasks.reporting.study.comparison import ENVIRONMENT

Draw = Callable[[Axes], None]
PANEL_INCHES = (3.4, 2.5)
COLUMNS = 3
STATES = {"False": "raw states", "True": "normalised states"}


def save(
    path: Path,
    panels: Sequence[tuple[str, Draw]],
    keys: Sequence[Key] = (),
    inches: tuple[float, float] = PANEL_INCHES,
) -> None:
    """Save panels with titles, three in a row, above one legend. Equal drawings give equal bytes."""
    rows = math.ceil(len(panels) / COLUMNS)
    columns = math.ceil(len(panels) / rows)
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(inches[0] * columns, inches[1] * rows + 0.4), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for (title, draw), axis in zip(panels, axes, strict=False):
            draw(axis)
            axis.set_title(title)
        for axis in axes:  # unused places in the last row
            axis.remove()
        lines = [
            Line2D([], [], color=key.colour, linestyle="--" if key.dashed else "-", label=key.label)
            for key in keys
        ]
        if lines:
            figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def draw_learning_curves(path: Path, evaluations: pandas.DataFrame, pruner: str) -> None:
    """Figures 1 and 2 of Arnob et al. (2021): score by update, dense and at each sparsity, mean and range."""
    own = evaluations[evaluations["pruner"].isin([DENSE, pruner])]
    save(path, _panels(own, partial(draw_learning, pruner=pruner)), pruner_keys([DENSE, pruner]))


def draw_long_training(path: Path, evaluations: pandas.DataFrame) -> None:
    """Score by update of agents that train longer than usual: a curve for each pruner, mean and range."""
    pruners = [DENSE, *sorted(set(evaluations["pruner"]) - {DENSE})]
    colours = dict(zip(pruners, (INK, *SERIES), strict=False))
    keys = [Key(name(pruner), colours.get(pruner, OTHER), pruner == DENSE) for pruner in pruners]
    save(path, _panels(evaluations, partial(_draw_by_pruner, colours=colours)), keys)


def _draw_by_pruner(axis: Axes, rows: pandas.DataFrame, colours: Mapping[str, str]) -> None:
    for pruner, own in rows.groupby("pruner"):
        plot_learning(axis, own, colours.get(str(pruner), OTHER), pruner == DENSE)
    label_learning(axis)


def _panels(evaluations: pandas.DataFrame, draw: Callable[..., None]) -> list[tuple[str, Draw]]:
    """A panel for each algorithm, kind of states and environment, drawn with its `rows`."""
    return [
        (f"{name(str(algorithm))}, {environment}, {STATES[str(states)]}", partial(draw, rows=rows))
        for (algorithm, states, environment), rows in evaluations.groupby(
            ["algorithm", "normalize_states", ENVIRONMENT]
        )
    ]


def draw_layer_counts(path: Path, layers: pandas.DataFrame) -> None:
    """Figure 3 of Arnob et al. (2021): weights left of each layer, mean and standard deviation over seeds."""
    own = layers[layers["pruner"].isin(["snip", "grasp", "random"])]
    panels = [
        (f"{name(str(algorithm))}, {name(str(network))}, {environment}", partial(draw_layers, rows=rows))
        for (algorithm, network, environment), rows in own.groupby(["algorithm", "network", ENVIRONMENT])
    ]
    save(path, panels, [Key(DENSE, INK), *pruner_keys(own["pruner"])])


def draw_costs(path: Path, costs: Mapping[str, Mapping[str, Mapping[str, Paired]]]) -> None:
    """Points that pruned agents score more than dense ones: a panel for each kind of agents, by name.

    A panel has rows by name, and in each row an estimate for each pruner.
    """
    panels = [(title, partial(_draw_estimates, rows=rows)) for title, rows in costs.items()]
    pruners = [pruner for rows in costs.values() for row in rows.values() for pruner in row]
    keys = [Key(name(pruner), _colour(pruner)) for pruner in dict.fromkeys(pruners)]
    save(path, panels, keys, (PANEL_INCHES[0], 0.9 + 0.6 * max(map(len, costs.values()))))


def _draw_estimates(axis: Axes, rows: Mapping[str, Mapping[str, Paired]]) -> None:
    """Draw a row of estimates, one below the other, each with its interval."""
    for at, estimates in enumerate(rows.values()):
        for i, (pruner, estimate) in enumerate(estimates.items()):
            y = at + (i - (len(estimates) - 1) / 2) * 0.7 / len(estimates)
            if estimate.interval:
                axis.hlines(y, *estimate.interval, color=_colour(pruner), linewidth=2, alpha=0.6)
            axis.plot(estimate.value, y, "o", color=_colour(pruner), markersize=4)
    axis.axvline(0, color=INK, linewidth=1, linestyle="--")
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("points more than dense agents")


def _colour(pruner: str) -> str:
    """The pruner's colour; a control has another one."""
    own, _, control = pruner.partition("-")
    return SERIES[3 + (own != "snip")] if control else PRUNERS.get(own, OTHER)
