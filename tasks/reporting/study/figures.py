"""The study's figures, each as one SVG file."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from singleshot.pruning.variant import DENSE
from tasks.reporting.blocks import Key
from tasks.reporting.look import INK, LOOK, OTHER, PRUNERS, name, pruner_keys
from tasks.reporting.section_pruning import draw_layers, draw_learning, draw_profile
from tasks.reporting.statistics import BootstrapConfig, bootstrap_interval, performance_profile
from tasks.reporting.study.comparison import NETWORK, PART, Estimate, Group, gained, matrices, score

Draw = Callable[[Axes], None]
PANEL_INCHES = (3.4, 2.5)
ESTIMATES_WIDTH = 4.4
"""Width of a panel whose rows have names."""
COLUMNS = 3


def save(
    path: Path,
    panels: Sequence[tuple[str, Draw]],
    keys: Sequence[Key] = (),
    inches: tuple[float, float] = PANEL_INCHES,
) -> None:
    """Save panels with titles, three in a row, above one legend. Equal drawings give equal bytes."""
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
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


def draw_learning_curves(path: Path, scores: pandas.DataFrame, pruner: str) -> None:
    """Figures 1 and 2 of Arnob et al. (2021): score by update, dense and at each sparsity, mean and range."""
    own = scores[scores["pruner"].isin([DENSE, pruner]) & scores["scope"].isin(["", PART])]
    panels = [
        (f"{name(str(algorithm))}, {task}", partial(draw_learning, rows=rows, pruner=pruner))
        for (algorithm, task), rows in own.groupby(["algorithm", "task"])
    ]
    save(path, panels, pruner_keys([DENSE, pruner]))


def draw_layer_counts(path: Path, layers: pandas.DataFrame) -> None:
    """Figure 3 of Arnob et al. (2021): weights left of each layer, mean and standard deviation over seeds."""
    own = layers[layers["pruner"].isin(["snip", "grasp", "random"])]
    panels = [
        (f"{name(str(algorithm))}, {name(str(network))}, {task}", partial(draw_layers, rows=rows))
        for (algorithm, network, task), rows in own.groupby(["algorithm", "network", "task"])
    ]
    save(path, panels, [Key(DENSE, INK), *pruner_keys(own["pruner"])])


def draw_aggregates(
    path: Path,
    agents: pandas.DataFrame,
    groups: Sequence[Group],
    tasks: Sequence[str],
    bootstrap: BootstrapConfig,
) -> None:
    """Interquartile mean over tasks and seeds of each group, with its interval; a panel per algorithm."""
    by_algorithm: dict[str, list[Group]] = {}
    for group in groups:
        by_algorithm.setdefault(group.algorithm, []).append(group)
    panels = [
        (
            name(algorithm),
            partial(
                draw_estimates,
                estimates={label(group): score(agents, group, tasks, bootstrap) for group in own},
                colours={label(group): colour(group) for group in own},
                what="interquartile mean of the D4RL score",
            ),
        )
        for algorithm, own in by_algorithm.items()
    ]
    save(path, panels, inches=(ESTIMATES_WIDTH, 0.6 + 0.24 * max(map(len, by_algorithm.values()))))


def draw_estimates(
    axis: Axes, estimates: dict[str, Estimate | None], colours: dict[str, str], what: str
) -> None:
    """Draw a row for each estimate: its value, and a bar for its interval."""
    known = {row: estimate for row, estimate in estimates.items() if estimate}
    for at, (row, estimate) in enumerate(known.items()):
        if estimate.interval:
            axis.hlines(at, *estimate.interval, color=colours[row], linewidth=2.5, alpha=0.6)
        axis.plot(estimate.value, at, "o", color=colours[row], markersize=5)
    axis.set_yticks(range(len(known)), list(known))
    axis.set_ylim(len(known) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(what)


def draw_profiles(
    path: Path,
    agents: pandas.DataFrame,
    groups: Sequence[Group],
    tasks: Sequence[str],
    bootstrap: BootstrapConfig,
) -> None:
    """Fraction of runs, over tasks and seeds, that score more than τ; a panel per algorithm."""
    rows = [table for group in groups if (table := _profile(agents, group, tasks, bootstrap)) is not None]
    table = pandas.concat(rows)
    panels = [
        (name(str(algorithm)), partial(draw_profile, rows=own))
        for algorithm, own in table.groupby("algorithm")
    ]
    save(path, panels, pruner_keys(table["pruner"]))


def _profile(
    agents: pandas.DataFrame, group: Group, tasks: Sequence[str], bootstrap: BootstrapConfig
) -> pandas.DataFrame | None:
    (scores,) = matrices(agents, [group], tasks)
    if not scores.size:
        return None
    thresholds = np.arange(0, 101, 2.0)
    bounds = bootstrap_interval(lambda s: performance_profile(s, thresholds), scores, config=bootstrap)
    low, high = bounds or (np.full(len(thresholds), np.nan),) * 2
    return pandas.DataFrame(
        {
            "algorithm": group.algorithm,
            "pruner": group.pruner,
            "score": thresholds,
            "fraction": performance_profile(scores, thresholds),
            "fraction_low": low,
            "fraction_high": high,
        }
    )


def draw_controls(
    path: Path,
    agents: pandas.DataFrame,
    tasks: Sequence[str],
    algorithms: Sequence[str],
    bootstrap: BootstrapConfig,
) -> None:
    """D4RL points by which a pruner's masks score more than the same shuffled; a panel per algorithm."""
    panels = []
    for algorithm in algorithms:
        estimates, colours = {}, {}
        for scope in (PART, NETWORK):
            for pruner in ("snip", "grasp"):
                for task in tasks:
                    row = f"{task}, {name(pruner)}, {scope}"
                    own, control = (Group(algorithm, kind, scope) for kind in (pruner, f"{pruner}-shuffled"))
                    estimates[row] = gained(agents, own, control, [task], bootstrap)
                    colours[row] = PRUNERS[pruner]
        panels.append((name(algorithm), partial(_draw_differences, estimates=estimates, colours=colours)))
    save(path, panels, inches=(ESTIMATES_WIDTH, 0.6 + 0.24 * 4 * len(tasks)))


def _draw_differences(axis: Axes, estimates: dict[str, Estimate | None], colours: dict[str, str]) -> None:
    draw_estimates(axis, estimates, colours, "points more than the same masks shuffled")
    axis.axvline(0, color=INK, linewidth=1, linestyle="--")


def draw_ablation(
    path: Path,
    agents: pandas.DataFrame,
    groups: Mapping[str, Sequence[tuple[int, Group]]],
    dense: Group,
    tasks: Sequence[str],
    bootstrap: BootstrapConfig,
) -> None:
    """Score (interquartile mean and interval) by each setting that is varied, a panel for each setting."""
    panels = [
        (
            what,
            partial(
                _draw_setting,
                points={
                    pruner: [
                        (setting, estimate)
                        for setting, group in varied
                        if group.pruner == pruner and (estimate := score(agents, group, tasks, bootstrap))
                    ]
                    for pruner in ("snip", "grasp")
                },
                dense=score(agents, dense, tasks, bootstrap),
                what=what,
            ),
        )
        for what, varied in groups.items()
    ]
    save(path, panels, pruner_keys([DENSE, "snip", "grasp"]))


def _draw_setting(
    axis: Axes, points: dict[str, Sequence[tuple[int, Estimate]]], dense: Estimate | None, what: str
) -> None:
    if dense:
        axis.axhline(dense.value, color=INK, linestyle="--")
        if dense.interval:
            axis.axhspan(*dense.interval, color=INK, alpha=0.08, linewidth=0)
    for pruner, own in points.items():
        shift = 0.97 if pruner == "snip" else 1.03  # side by side, so that bars do not cover each other
        settings = [setting * shift for setting, _ in own]
        axis.plot(
            settings, [estimate.value for _, estimate in own], "o-", color=PRUNERS[pruner], markersize=4
        )
        for setting, (_, estimate) in zip(settings, own, strict=True):
            if estimate.interval:
                axis.vlines(setting, *estimate.interval, color=PRUNERS[pruner], linewidth=2, alpha=0.5)
    axis.set_xscale("log")
    settings = sorted({setting for own in points.values() for setting, _ in own})
    axis.set_xticks(settings, [str(setting) for setting in settings])
    axis.minorticks_off()
    axis.set_xlabel(what)
    axis.set_ylabel("D4RL score")


def label(group: Group) -> str:
    """A group's pruner and scope in words."""
    if group.pruner == DENSE:
        return DENSE
    pruner, _, control = group.pruner.partition("-")
    words = f"{name(pruner)}, {control}" if control else name(pruner)
    return f"{words}, {group.scope}"


def colour(group: Group) -> str:
    """The pruner's colour, also for its controls."""
    return PRUNERS.get(group.pruner.partition("-")[0], OTHER)
