"""Groups of the study's agents with the same settings, and estimates that compare groups seed by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
import pandas

from singleshot.pruning.variant import DENSE
from tasks.reporting.statistics import MIN_SEEDS, BootstrapConfig, Paired, mean_interval, paired

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
"""Columns of the settings in which agents of the study differ. They are read as text, empty where they don't
apply; `updates` is a number."""
ENVIRONMENT = "environment"
"""Column of the environment's name."""
AGENT = (ENVIRONMENT, "algorithm", "pruner", "sparsity", "seed")
PART, NETWORK = "part", "network"
OWN_BATCH_SIZE = {"snip": 100, "grasp": 200}
"""Number of transitions on which Arnob et al. (2021, section 4) compute a pruner's scores; 100 for others."""
OWN_ITERATIONS = {"synflow": 100}
"""Rounds of scoring and pruning in a pruner's paper; 1 for others."""
KEY = (
    ENVIRONMENT,
    "algorithm",
    "pruner",
    "normalize_states",
    "draws",
    "updates",
    "batch_size",
    "failed_episodes",
    "sparsity",
    "scope",
    "pruning_batch_size",
    "pruning_iterations",
    "pruning_normalize_states",
)
"""The columns in which agents of one group agree. :func:`with_draws` adds the column `draws`."""
Draws = Literal["own", "shared"]
"""Whether each seed's agents train on a data set of their own, or all seeds on one data set."""
SHARED = "shared"
KINDS_OF_DRAWS: tuple[Draws, ...] = ("own", "shared")
USUALLY_FAILED = {"own": "0", "shared": ""}
"""Share of failed episodes in the data of the main comparison, by the kind of draws."""


@dataclass(frozen=True)
class Group:
    """Agents that differ only in their seed. The defaults are the settings of the main comparison."""

    environment: str
    algorithm: str
    pruner: str = DENSE
    normalize_states: bool = False
    draws: Draws = "shared"
    updates: int | None = None
    """Number of updates; None: as many as most of the algorithm's agents have."""
    batch_size: int | None = None
    """Number of transitions in the batch of an update; None: that of most of the algorithm's agents."""
    failed_episodes: str | None = None
    """Share of the data's episodes that failed, empty for as many as there happen to be. None: the share in
    the main comparison."""
    sparsity: float = 0.95
    scope: str = PART
    pruning_batch_size: int | None = None
    """Number of transitions on which a pruner's scores are computed; None: its authors' number."""
    pruning_iterations: int | None = None
    """Rounds of scoring and pruning; None: its authors' number."""
    pruning_normalize_states: bool | None = None
    """Whether masks are scored on normalised states; None: on those of the training."""

    def dense(self) -> Self:
        """The group with the same settings, but without pruning."""
        return replace(self, pruner=DENSE)

    def key(self, usual_updates: int, usual_batch_size: int) -> tuple[object, ...]:
        """The values of the columns :data:`KEY` of the group's rows in the study's tables."""
        agents = (
            self.environment,
            self.algorithm,
            self.pruner,
            str(self.normalize_states),
            self.draws,
            self.updates or usual_updates,
            str(self.batch_size or usual_batch_size),
            USUALLY_FAILED[self.draws] if self.failed_episodes is None else self.failed_episodes,
        )
        if self.pruner == DENSE:
            return (*agents, 0.0, "", "", "", "")
        own = self.pruner.partition("-")[0]
        on_normalized = self.pruning_normalize_states
        return (
            *agents,
            self.sparsity,
            self.scope,
            str(self.pruning_batch_size or OWN_BATCH_SIZE.get(own, 100)),
            str(self.pruning_iterations or OWN_ITERATIONS.get(own, 1)),
            str(self.normalize_states if on_normalized is None else on_normalized),
        )


def with_draws(table: pandas.DataFrame) -> pandas.DataFrame:
    """A table of the study with the column `draws`: `own`, `shared`, or `other` for another seed's draw."""
    own = table["data_seed"] == table["seed"].astype(str)
    shared = table["data_seed"] == SHARED
    return table.assign(draws=np.select([own, shared], ["own", "shared"], "other"))


@dataclass(frozen=True)
class Study:
    """The study's tables, and estimates from them."""

    evaluations: pandas.DataFrame
    """Every evaluation: scores.csv."""
    agents: pandas.DataFrame
    """The scores of the agents: their :func:`~tasks.reporting.agent_scores.agent_scores`."""
    layers: pandas.DataFrame
    runs: pandas.DataFrame
    bootstrap: BootstrapConfig

    @cached_property
    def usual_updates(self) -> Mapping[str, int]:
        """Number of updates that most of each algorithm's agents have."""
        return self._usual("updates")

    @cached_property
    def usual_batch_sizes(self) -> Mapping[str, int]:
        """Number of transitions in a batch that most of each algorithm's agents have."""
        return self._usual("batch_size")

    def _usual(self, column: str) -> Mapping[str, int]:
        usual = self.agents.groupby("algorithm")[column].agg(lambda values: values.mode().iloc[0])
        return {str(algorithm): int(n) for algorithm, n in usual.items()}

    @cached_property
    def _agents(self) -> Mapping[tuple[object, ...], pandas.DataFrame]:
        return dict(iter(self.agents.set_index("seed").groupby(list(KEY))))

    @cached_property
    def _evaluations(self) -> Mapping[tuple[object, ...], pandas.DataFrame]:
        return dict(iter(self.evaluations.groupby(list(KEY))))

    def key(self, group: Group) -> tuple[object, ...]:
        """The values of the columns :data:`KEY` of the group's rows."""
        algorithm = group.algorithm
        return group.key(self.usual_updates.get(algorithm, 0), self.usual_batch_sizes.get(algorithm, 0))

    def each(self, column: str) -> list:
        """The values of a column of agents, sorted."""
        return sorted(self.agents[column].unique())

    def main_layers(self, normalize_states: bool, scope: str = PART) -> pandas.DataFrame:
        """The layers of the main comparison's masks, each once: those on own draws where there are enough.

        Masks do not depend on the number of updates.
        """
        layers = self.layers
        own_size = layers["pruner"].str.partition("-")[0].map(OWN_BATCH_SIZE).fillna(100).astype(int)
        main = layers[
            (layers["pruning_batch_size"] == own_size.astype(str))
            & (layers["pruning_iterations"] == "1")
            & (layers["scope"] == scope)
            & (layers["sparsity"] == Group.sparsity)
            & (layers["batch_size"] == layers["algorithm"].map(self.usual_batch_sizes).astype(str))
            & (layers["failed_episodes"] == layers["draws"].map(USUALLY_FAILED))
            & (layers["normalize_states"] == str(normalize_states))
            & (layers["pruning_normalize_states"] == str(normalize_states))
        ]
        kind = [ENVIRONMENT, "algorithm", "pruner"]
        seeds = main[main["draws"] == "own"].groupby(kind)["seed"].nunique()
        complete = main.set_index(kind).index.isin(seeds[seeds >= MIN_SEEDS].index)
        chosen = main[main["draws"] == np.where(complete, "own", "shared")]
        return chosen.drop_duplicates([*AGENT, "part", "layer"])

    def scores(self, group: Group) -> "pandas.Series[float]":
        """The group's scores by seed."""
        rows = self._agents.get(self.key(group))
        return pandas.Series(dtype=float) if rows is None else rows["d4rl_score"]

    def on_best_draws(self, groups: Sequence[Group]) -> list[Group]:
        """The groups, all on the kind of draws that says most about them.

        Agents on their own draws and agents on a shared draw are never compared with each other. Own draws
        say more, as their intervals hold for other data, so they are taken as soon as two groups have the
        seeds for an interval there; else it is the kind on which more groups have them.
        """

        best = max(KINDS_OF_DRAWS, key=lambda draws: self._completeness(groups, draws))
        return [replace(group, draws=best) for group in groups]

    def on_other_draws(self, groups: Sequence[Group]) -> list[Group]:
        """The groups on the kind of draws that :meth:`on_best_draws` does not take."""
        (best, *_) = self.on_best_draws(groups)
        (other,) = (draws for draws in KINDS_OF_DRAWS if draws != best.draws)
        return [replace(group, draws=other) for group in groups]

    def _completeness(self, groups: Sequence[Group], draws: Draws) -> tuple[bool, int, int]:
        counts = [len(self.scores(replace(group, draws=draws))) for group in groups]
        complete = sum(n >= MIN_SEEDS for n in counts)
        comparable = draws == "own" and complete >= min(2, len(groups))
        return comparable, complete, 0 if complete else sum(counts)

    def score(self, group: Group) -> Paired | None:
        """Mean score of the group's agents; None if there are none."""
        scores = self.scores(group)
        return None if scores.empty else mean_interval(scores.to_numpy(), self.bootstrap)

    def spread(self, group: Group) -> float:
        """Standard deviation between an agent's evaluations, as the mean over seeds."""
        return float(self._agents[self.key(group)]["spread"].mean())

    def evaluations_of(self, group: Group) -> pandas.DataFrame:
        """Every evaluation of the group's agents."""
        rows = self._evaluations.get(self.key(group))
        return self.evaluations.iloc[:0] if rows is None else rows

    def compare(
        self, own: Group, other: Group, *, ratio: bool = False, threshold: float = 0
    ) -> Paired | None:
        """Compare two groups on the seeds that both have; None if there is none."""
        both = pandas.concat([self.scores(own), self.scores(other)], axis=1, join="inner").to_numpy()
        if not len(both):
            return None
        return paired(both[:, 0], both[:, 1], self.bootstrap, ratio=ratio, threshold=threshold)

    def dense_of(self, group: Group) -> Group:
        """The dense agents to compare a group with: of the same length if there are enough of them."""
        dense = group.dense()
        return dense if len(self.scores(dense)) >= MIN_SEEDS else replace(dense, updates=None)
