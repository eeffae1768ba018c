"""Groups of the study's agents with the same settings, and statistics that compare groups.

Groups are compared on the seeds that both have, task by task. Agents with the same seed share data order,
noise and initial weights, so the bootstrap draws the same seeds for both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pandas

from singleshot.errors import UserError
from singleshot.pruning.variant import DENSE
from tasks.reporting.statistics import (
    Array,
    BootstrapConfig,
    bootstrap_interval,
    difference,
    interquartile_mean,
    retention,
)

SETTINGS = (
    "updates",
    "normalize_states",
    "batch_size",
    "data_seed",
    "failed_episodes",
    "scope",
    "pruning_batch_size",
    "pruning_iterations",
    "pruning_normalize_states",
)
AGENT = ("task", "algorithm", "pruner", "sparsity", "seed")
PART, NETWORK = "part", "network"
OWN_BATCH_SIZE = {"snip": 100, "grasp": 200}
"""Number of transitions on which Arnob et al. (2021, section 4) compute a pruner's scores."""


@dataclass(frozen=True)
class Estimate:
    """A statistic with its interval; no interval if there are too few seeds."""

    value: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both bounds, if there are any."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Group:
    """Agents that differ only in task and seed."""

    algorithm: str
    pruner: str = DENSE
    scope: str = PART
    sparsity: float = 0.95
    normalize_states: bool = False
    batch_size: int | None = None
    """Number of transitions on which pruning scores are computed; None: the paper's number."""
    iterations: int = 1
    updates: int | None = None
    """Number of updates; None: as many as the algorithm's agents have in the main experiment."""

    def of(self, agents: pandas.DataFrame) -> pandas.DataFrame:
        """Scores of the group's agents: one row per task, one column per seed, NaN for unfinished agents."""
        return self.rows(agents).pivot(index="task", columns="seed", values="d4rl_score")

    def rows(self, table: pandas.DataFrame) -> pandas.DataFrame:
        """The rows of the group's agents in one of the study's tables."""
        chosen = (table["algorithm"] == self.algorithm) & (table["pruner"] == self.pruner)
        chosen &= table["normalize_states"] == self.normalize_states
        chosen &= table["updates"] == (self.updates or main_updates(table, self.algorithm))
        if self.pruner != DENSE:
            size = self.batch_size or OWN_BATCH_SIZE.get(self.pruner.partition("-")[0], 100)
            chosen &= (table["scope"] == self.scope) & (table["sparsity"] == self.sparsity)
            chosen &= (table["pruning_batch_size"] == size) & (table["pruning_iterations"] == self.iterations)
        return table[chosen]

    def dense(self) -> Self:
        """The group with the same settings, but without pruning."""
        return replace(self, pruner=DENSE)


def final_scores(scores: pandas.DataFrame) -> pandas.DataFrame:
    """The evaluation after the last update of each agent of a study's scores.csv."""
    return scores[scores["update"] == scores["updates"]]


def is_main(
    table: pandas.DataFrame, scope: str = PART, normalize_states: bool = False
) -> "pandas.Series[bool]":
    """Which agents have the paper's settings (batch size, one iteration, raw states), dense ones included."""
    own_size = table["pruner"].str.partition("-")[0].map(OWN_BATCH_SIZE).fillna(100)
    pruned = (table["pruning_batch_size"] == own_size) & (table["pruning_iterations"] == 1)
    states = table["normalize_states"] == normalize_states
    return states & ((table["pruner"] == DENSE) | (pruned & (table["scope"] == scope)))


def main_updates(agents: pandas.DataFrame, algorithm: str) -> int:
    """Number of updates that most of an algorithm's agents have; the pilot's agents have more.

    Raises:
        UserError: there are no agents of the algorithm.
    """
    updates = agents.loc[agents["algorithm"] == algorithm, "updates"]
    if updates.empty:
        raise UserError(f"the study's tables have no agent of {algorithm}; run `python -m pipelines study`")
    return int(updates.mode().iloc[0])


def matrices(agents: pandas.DataFrame, groups: Sequence[Group], tasks: Sequence[str]) -> list[Array]:
    """Scores (task, seed) of each group, for the seeds that all groups have in all `tasks`."""
    tables = [group.of(agents).reindex(tasks) for group in groups]
    seeds = [set(table.columns[table.notna().all()]) for table in tables]
    common = sorted(set.intersection(*seeds))
    return [table[common].to_numpy() for table in tables]


def compare(
    statistic: Callable[..., Array], scores: Sequence[Array], bootstrap: BootstrapConfig
) -> Estimate | None:
    """Estimate `statistic` from the scores (task, seed) of groups; None if there is no seed."""
    seeds = scores[0].shape[1]
    if seeds == 0:
        return None
    interval = bootstrap_interval(statistic, *scores, config=bootstrap)
    low, high = (float(bound) for bound in interval) if interval else (None, None)
    return Estimate(float(statistic(*scores)), low, high, seeds)


def retained(
    agents: pandas.DataFrame, group: Group, tasks: Sequence[str], bootstrap: BootstrapConfig
) -> Estimate | None:
    """Share of the dense agents' interquartile mean that a pruned group keeps, averaged over tasks."""
    return compare(retention, matrices(agents, [group, group.dense()], tasks), bootstrap)


def gained(
    agents: pandas.DataFrame, group: Group, other: Group, tasks: Sequence[str], bootstrap: BootstrapConfig
) -> Estimate | None:
    """D4RL points by which `group` scores more than `other`."""
    return compare(difference, matrices(agents, [group, other], tasks), bootstrap)


def gained_beyond_dense(
    agents: pandas.DataFrame, group: Group, tasks: Sequence[str], bootstrap: BootstrapConfig
) -> Estimate | None:
    """D4RL points that a group gains from normalised states, minus the points that dense agents gain."""

    def gain(pruned: Array, raw_pruned: Array, dense: Array, raw_dense: Array) -> Array:
        return difference(pruned, raw_pruned) - difference(dense, raw_dense)

    groups = [
        replace(each, normalize_states=normalized)
        for each in (group, group.dense())
        for normalized in (True, False)
    ]
    return compare(gain, matrices(agents, groups, tasks), bootstrap)


def score(
    agents: pandas.DataFrame, group: Group, tasks: Sequence[str], bootstrap: BootstrapConfig
) -> Estimate | None:
    """Interquartile mean of the group's D4RL scores."""
    return compare(interquartile_mean, matrices(agents, [group], tasks), bootstrap)
