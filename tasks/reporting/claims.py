"""Arnob et al.'s claims compared with this run, with verdicts as far as its intervals allow."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

import pandas
from scipy.stats import gmean

from singleshot.pruning.variant import DENSE
from tasks.reporting import deployment, paper, pruning, results
from tasks.reporting.look import name
from tasks.reporting.results import Results
from tasks.reporting.scores import agent_scores
from tasks.reporting.statistics import MIN_SEEDS, BootstrapConfig, t_half_width
from tasks.reporting.words import Row, count, exact_percent, interval, number, pace, points, two_digits

KEPT = 10
"""A score is kept if the loss is surely less than so many points, a tenth of the expert's score."""
HOLDS, FAILS, PARTLY, OPEN = "holds", "fails", "partly", "not decided by this run"
NOT_RUN = "not run"
OPPOSITE = {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}
FIGURES = {"snip": "Figure 1", "grasp": "Figure 2"}
"""The paper's pruners, and where it shows their agents' scores."""


@dataclass(frozen=True)
class Difference:
    """Points that agents score more than others, as the mean over seeds, with its interval by Student's t."""

    points: float
    low: float
    """NaN, as `high`, for fewer than three seeds."""
    high: float
    seeds: int

    @property
    def kept(self) -> str:
        """The verdict on the claim that the first agents score as much as the others."""
        return HOLDS if self.low > -KEPT else FAILS if self.high < 0 else OPEN

    @property
    def more(self) -> str:
        """The verdict on the claim that the first agents score more than the others."""
        return HOLDS if self.low > 0 else FAILS if self.high < 0 else OPEN

    def interval(self, level: str) -> str:
        """The interval, if there is one, and the number of seeds."""
        bounds = f"{level} interval: {self._bounds}, " * (self.seeds >= MIN_SEEDS)
        return bounds + count(self.seeds, "seed")

    def __str__(self) -> str:
        bounds = self._bounds if self.seeds >= MIN_SEEDS else count(self.seeds, "seed")
        return f"{points(self.points)} ({bounds})" if self.seeds else NOT_RUN

    @property
    def _bounds(self) -> str:
        return interval(self.low, self.high, points)


def difference(agents: pandas.DataFrame, others: pandas.DataFrame, confidence: float) -> Difference:
    """Compare `agents` with `others` of the same environment, algorithm and seed; one mean for each seed.

    Both have a row for each agent (:func:`agents_of`).
    """
    pairs = agents.merge(others, on=["environment", "algorithm", "seed"], suffixes=("", "_other"))
    more = (pairs["d4rl_score"] - pairs["d4rl_score_other"]).groupby(pairs["seed"]).mean()
    mean, seeds = float(more.mean()), len(more)
    if seeds < MIN_SEEDS:
        return Difference(mean, nan, nan, seeds)
    half = t_half_width(float(more.std()), seeds, BootstrapConfig(confidence=confidence))
    return Difference(mean, mean - half, mean + half, seeds)


def agents_of(found: Results) -> pandas.DataFrame:
    """The score of each agent of the run."""
    return agent_scores(
        found.table(results.SCORES), ["environment", "algorithm", "pruner", "sparsity", "seed"]
    )


def most_pruned(found: Results) -> dict[str, pandas.DataFrame]:
    """The scores of dense agents, and of each pruner's at the highest sparsity."""
    agents = agents_of(found)
    dense, top = agents[agents["pruner"] == DENSE], pruning.highest(agents)
    return {str(pruner): own for pruner, own in pandas.concat([dense, top]).groupby("pruner")}


def table(found: Results, confidence: float) -> list[Row]:
    """A row for each claim: what the paper says, what this run has, and whether the claim holds."""
    return [
        {"the paper says": says, "here": here, "verdict": verdict}
        for says, here, verdict in (
            *_scores(agents_of(found), confidence),
            *_last_layers(found),
            _bytes(found.table(results.SIZES)),
            _speed(deployment.compacted_pairs(deployment.read_timings(found))),
            ("larger batches for pruning, or more rounds of it, change nothing", "one setting", OPEN),
        )
    ]


Claim = tuple[str, str, str]
"""What the paper says, what is here, and the verdict."""


def _scores(agents: pandas.DataFrame, confidence: float) -> Iterator[Claim]:
    dense = agents[agents["pruner"] == DENSE]
    pruned = agents[agents["pruner"].isin(FIGURES) & (agents["sparsity"] > 0)]
    most = pruned[pruned["sparsity"] == paper.HIGHEST_SPARSITY]
    kinds = most.groupby(["pruner", "algorithm", "environment"])
    for (pruner, algorithm, environment), own in sorted(kinds, key=lambda kind: FIGURES[kind[0][0]]):
        found = difference(own, dense, confidence)
        who = f"{name(algorithm)} on {environment}"
        how = f"{exact_percent(paper.HIGHEST_SPARSITY)} pruned by {name(pruner)}"
        if algorithm not in paper.SWEEP_ALGORITHMS:
            yield f"other algorithms keep their score (expected): {who}, {how}", str(found), found.kept
        elif (algorithm, environment) == paper.LOSES:
            yield f"{who} loses score, {how} ({FIGURES[pruner]})", str(found), OPPOSITE[found.kept]
        else:
            yield f"{who} keeps its score, {how} ({FIGURES[pruner]})", str(found), found.kept
    less = difference(pruned[pruned["sparsity"] < paper.HIGHEST_SPARSITY], dense, confidence)
    yield "scores are kept with less pruned, too, from 10 % on", str(less), less.kept


def _last_layers(found: Results) -> Iterator[Claim]:
    layers = found.table(results.LAYERS)
    chosen = layers[layers["pruner"].isin(FIGURES) & (layers["sparsity"] == paper.HIGHEST_SPARSITY)]
    mlp = ["environment", "algorithm", "network", "part", "pruner"]
    kept = chosen.groupby([*mlp, "layer"], sort=False)[["weights_kept", "weights_total"]].sum()
    share = (kept["weights_kept"] / kept["weights_total"]).groupby(level=mlp, sort=False).agg(["last", "max"])
    largest = share["last"] == share["max"]
    yield "last layers keep the largest share (Figure 3)", *_counted(largest)
    last = share["last"].unstack("pruner").reindex(columns=list(FIGURES)).dropna()
    yield "GraSP keeps more of the last layers than SNIP (Figure 3)", *_counted(last["grasp"] > last["snip"])


def _counted(true: "pandas.Series[bool]") -> tuple[str, str]:
    if true.empty:
        return NOT_RUN, OPEN
    return (
        f"in {true.sum()} of {len(true)} networks",
        HOLDS if true.all() else PARTLY if true.any() else FAILS,
    )


def _bytes(sizes: pandas.DataFrame) -> Claim:
    says = f"networks take {paper.SPARSE_SAVING} times fewer bytes (Table 1, Figure 4)"
    own = sizes[sizes["sparsity"] == paper.HIGHEST_SPARSITY]
    if own.empty:
        return says, NOT_RUN, OPEN
    saving = pruning.savings(own)["coo"]
    return says, f"{number(saving, 2)} times", HOLDS if round(saving) == paper.SPARSE_SAVING else FAILS


def _speed(pairs: pandas.DataFrame) -> Claim:
    says = "pruned networks act faster, with software for it"
    if pairs.empty:
        return says, NOT_RUN, OPEN
    gain = pairs["gain"]
    mean = gmean(gain)
    here = f"{pace(mean)} ({interval(gain.min(), gain.max(), two_digits)} by runtime)"
    return says, f"without dead units {here}", HOLDS if gain.min() > 1 else PARTLY if mean > 1 else FAILS
