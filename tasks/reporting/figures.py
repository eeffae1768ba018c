"""Task: learning curves of agents, from `scores.csv`."""

from pathlib import Path

import pandas
from matplotlib import pyplot
from matplotlib.axes import Axes

from singleshot.pruning.variant import percentage
from tasks.job import Job, per_job
from tasks.reporting.look import DENSE, OTHER, PRUNERS, save_png


@per_job
def draw_figures(job: Job) -> None:
    """Draw `scores.png` from a job's `scores`, a `scores.csv`."""
    draw_scores(pandas.read_csv(job.inputs["scores"]), job.params.profile, job.output / "scores.png")


def draw_scores(scores: pandas.DataFrame, profile: str, path: Path) -> None:
    """Draw learning curves: a panel for each algorithm and task, mean over seeds, band from min to max.

    The band is what Arnob et al. 2021 (Figures 1 and 2) call a 100 % confidence interval. For each pruner,
    only the highest sparsity is drawn, beside the dense agents.
    """
    panels = list(scores.groupby(["algorithm", "task"]))
    algorithms, tasks = scores["algorithm"].nunique(), scores["task"].nunique()
    figure, axes = pyplot.subplots(
        algorithms, tasks, figsize=(max(4.2 * tasks, 7), 3.1 * algorithms), sharex="row", squeeze=False
    )
    for axis, ((algorithm, task), panel) in zip(axes.flat, panels, strict=True):
        for pruner, rows in panel.groupby("pruner", sort=False):
            sparsity = rows["sparsity"].max()
            label = DENSE if pruner == DENSE else f"{pruner}, {percentage(sparsity)}% pruned"
            colour = PRUNERS.get(str(pruner), OTHER)
            plot_learning(axis, rows[rows["sparsity"] == sparsity], colour, pruner == DENSE, label)
        axis.set_title(f"{str(algorithm).upper()}, {task}")
        axis.set_xlabel("gradient updates")
        axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel("D4RL score")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"Pruned before training: mean and range over seeds {_seeds(scores)}")
    save_png(figure, profile, path)


def _seeds(scores: pandas.DataFrame) -> str:
    return ", ".join(str(seed) for seed in sorted(scores["seed"].unique()))


def plot_learning(axis: Axes, rows: pandas.DataFrame, colour: str, dashed: bool, label: str = "") -> None:
    """Plot one curve of scores by update: the mean over seeds, and a band from the lowest to the highest."""
    score = rows.groupby("update")["d4rl_score"].agg(["mean", "min", "max"])
    axis.fill_between(score.index, score["min"], score["max"], color=colour, alpha=0.14, linewidth=0)
    axis.plot(score.index, score["mean"], "--" if dashed else "-", color=colour, label=label)
