"""Agents' scores; and the task that estimates their statistics, and the share that pruning leaves.

An agent's score is the mean of its last evaluations, as one evaluation is a snapshot: in the study, an
agent's last five differ by a standard deviation of 3 points in the median over agents and of 38 at most,
where the standard error over the 50 episodes of the very last one is 0.7 in the median.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

from singleshot.errors import UserError
from singleshot.io.tables import write_csv
from singleshot.job import Event, Job, Metrics, per_job
from singleshot.pruning.variant import DENSE, variant_name
from tasks.reporting.statistics import (
    Array,
    BootstrapConfig,
    bootstrap_interval,
    interquartile_mean,
    retention,
)

EVALUATIONS = 5
"""Number of an agent's evaluations, counted from the last one, whose mean is the agent's score."""
ALL = "all"
"""Value of the column `environment` for statistics over all environments."""
VARIANT = ["algorithm", "pruner", "sparsity"]
RUN = ["environment", "seed"]


def agent_scores(evaluations: pandas.DataFrame, agent: Sequence[str]) -> pandas.DataFrame:
    """Score each agent from its `evaluations` (columns `update`, `d4rl_score` and those of `agent`).

    Returns:
        a row per agent with the columns of `agent`, and
            `d4rl_score`: mean of the last :data:`EVALUATIONS` evaluations, or of all if there are fewer;
            `spread`: their sample standard deviation in points, NaN for a single one;
            `evaluations`: their number.
    """
    last = evaluations.sort_values("update").groupby(list(agent), dropna=False).tail(EVALUATIONS)
    scores = last.groupby(list(agent), dropna=False)["d4rl_score"]
    columns = {"d4rl_score": "mean", "spread": "std", "evaluations": "count"}
    return scores.agg(**columns).reset_index()


@dataclass(frozen=True)
class StatisticsRow:
    """A row of statistics.csv: the D4RL scores of a variant's runs, each the mean of its last evaluations.

    `…_low` and `…_high` are the bounds of bootstrap intervals. They are empty for fewer than three seeds.
    """

    environment: str
    """An environment's name, or :data:`ALL`."""
    algorithm: str
    pruner: str
    sparsity: float
    seeds: int
    """Number of runs of each environment."""
    score_mean: float
    score_min: float
    """Lowest score. Arnob et al. 2021 call the range from here to `score_max` a 100 % confidence interval."""
    score_max: float
    score_iqm: float
    """Interquartile mean of the scores."""
    score_iqm_low: float | None
    score_iqm_high: float | None
    retention: float | None
    """`score_iqm` divided by the dense agents' `score_iqm`; for :data:`ALL`, the mean over environments.

    It is 1 for dense agents, and empty if an environment has no dense agents or their `score_iqm` is not
    above zero.
    """
    retention_low: float | None
    """Lower bound. Both bounds are also empty for dense agents, and if a dense agent scores zero or less."""
    retention_high: float | None
    evaluations: int
    """Number of evaluations of each run that its score is the mean of."""
    score_spread: float | None
    """Standard deviation between these evaluations in points, as the mean over runs; empty for one."""


@per_job
def evaluate_scores(job: Job) -> Iterator[Event]:
    """Estimate how well a job's agents do from its `scores` (a `scores.csv`) and :class:`BootstrapConfig`.

    The output gets `statistics.csv` (:class:`StatisticsRow`) and `evaluation.json`, the retention at the
    highest sparsity by environment, algorithm and pruner. Its values are also the metrics.

    Raises:
        UserError: an agent has no score for an environment and a seed for which others have one.
    """
    scores = _read(job.inputs["scores"])
    rows = list(_statistics(scores, job.params)) if len(scores) else []  # none if no agent has an environment
    write_csv(job.output / "statistics.csv", StatisticsRow, rows)
    pruned = [row for row in rows if row.pruner != DENSE]
    top = [row for row in pruned if row.sparsity == max(each.sparsity for each in pruned)]
    summary = {
        f"retention/{row.environment}/{row.algorithm}/{variant_name(row.pruner, row.sparsity)}": row.retention
        and round(row.retention, 4)
        for row in top
    }
    (job.output / "evaluation.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    yield Metrics(0, {name: value for name, value in summary.items() if value is not None})


def _read(path: Path) -> pandas.DataFrame:
    """The scores of a scores.csv, by variant, then run."""
    scores = agent_scores(pandas.read_csv(path), [*VARIANT, *RUN]).set_index([*VARIANT, *RUN])
    if scores.empty:
        return scores
    runs = scores["d4rl_score"].unstack(RUN)
    if (holes := runs.isna().stack(RUN, future_stack=True)).any():
        raise UserError(f"{path}: no score of {holes.idxmax()}; remove the file and run `dvc repro`")
    return scores


def _statistics(agents: pandas.DataFrame, bootstrap: BootstrapConfig) -> Iterator[StatisticsRow]:
    runs = agents["d4rl_score"].unstack(RUN)
    environments = list(runs.columns.unique("environment"))
    for environment, chosen in [*((each, [each]) for each in environments), (ALL, environments)]:
        matrices = {variant: row[chosen].unstack("seed").to_numpy() for variant, row in runs.iterrows()}
        for (algorithm, pruner, sparsity), scores in matrices.items():
            low, high = _bounds(bootstrap_interval(interquartile_mean, scores, config=bootstrap))
            dense = matrices.get((algorithm, DENSE, 0.0))
            kept, least, most = (1.0, None, None) if pruner == DENSE else _retention(scores, dense, bootstrap)
            own = agents.loc[(algorithm, pruner, sparsity, chosen), :]
            spread = float(own["spread"].mean())
            yield StatisticsRow(
                environment=environment,
                algorithm=algorithm,
                pruner=pruner,
                sparsity=sparsity,
                seeds=scores.shape[1],
                score_mean=float(scores.mean()),
                score_min=float(scores.min()),
                score_max=float(scores.max()),
                score_iqm=float(interquartile_mean(scores)),
                score_iqm_low=low,
                score_iqm_high=high,
                retention=kept,
                retention_low=least,
                retention_high=most,
                evaluations=int(own["evaluations"].min()),
                score_spread=None if math.isnan(spread) else spread,
            )


def _bounds(interval: tuple[Array, Array] | None) -> tuple[float | None, float | None]:
    return (float(interval[0]), float(interval[1])) if interval else (None, None)


def _retention(
    pruned: Array, dense: Array | None, bootstrap: BootstrapConfig
) -> tuple[float | None, float | None, float | None]:
    """The share that pruning leaves, with the bounds of its interval."""
    if dense is None or not (interquartile_mean(dense[:, np.newaxis]) > 0).all():
        return None, None, None
    estimate = float(retention(pruned, dense))
    if dense.min() <= 0:
        return estimate, None, None
    return estimate, *_bounds(bootstrap_interval(retention, pruned, dense, config=bootstrap))
