"""The page of docs/study: README.md and its figures, made only from the study's tables."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jinja2
import numpy as np
import pandas

from singleshot.errors import UserError, in_a_line
from singleshot.pruning.variant import DENSE
from tasks.reporting.blocks import duration, listing, number
from tasks.reporting.look import name
from tasks.reporting.statistics import BootstrapConfig
from tasks.reporting.study import figures
from tasks.reporting.study.claims import Claim, Verdict, all_claims
from tasks.reporting.study.comparison import (
    AGENT,
    NETWORK,
    PART,
    SETTINGS,
    Estimate,
    Group,
    final_scores,
    is_main,
    main_updates,
    retained,
    score,
)
from tasks.tables import write_csv

TEMPLATE = Path(__file__).parents[1] / "templates" / "study.md"
MASKS = ("snip", "snip-shuffled", "grasp", "grasp-shuffled")
BATCH_SIZES = (50, 100, 200, 400, 800, 1600)
SPARSITIES = (0.5, 0.75, 0.9, 0.95, 0.98)
ITERATIONS = (1, 3, 10, 30, 100)
ABLATED = "HalfCheetah"
"""Task of the ablations, and of the agents with normalised states."""
OUTPUT_LAYER = "decoder.2"
"""The layer whose outputs are the actions of the ablations' agents, which are BC's."""
ERROR_GOAL = 2
"""Standard error of an agent's score in points that the number of episodes was chosen for."""
PARTS = (["encoder"], ["decoder"], ["actor"], ["critic 1", "critic 2"])
"""The parts that each column of the table of densities counts."""
COLUMNS = {
    table: (*SETTINGS, *AGENT, *own)
    for table, own in {
        "scores.csv": ("update", "return_mean", "return_std", "d4rl_score", "episodes"),
        "layers.csv": ("part", "layer", "weights_total", "weights_kept", "states_total", "states_kept"),
        "runs.csv": ("commit", "processor", "seconds"),
    }.items()
}
"""The columns that the page is made from."""
Row = tuple[str, ...]
"""Cells of a row of a table, in the order of the columns in the template."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment, with the numbers of its agents, and how many of them are trained."""

    name: str
    pruned: int
    pruned_finished: int
    dense: int
    dense_finished: int


@dataclasses.dataclass(frozen=True)
class ClaimRow:
    """A row of claims.csv."""

    claim: str
    measured: str
    agents: str
    masks: str
    value: float
    low: float | None
    high: float | None
    seeds: int
    verdict: str


def write_page(
    directory: Path, experiments: Sequence[Experiment], planned: int, bootstrap: BootstrapConfig
) -> None:
    """Write `README.md`, `claims.csv` and the figures into `directory`, which has the study's tables.

    `planned` is the number of different agents in all experiments.

    Raises:
        UserError: a table is missing or damaged.
    """
    scores, layers, runs = (_read(directory / table) for table in COLUMNS)
    agents = final_scores(scores)
    claims = all_claims(agents, layers, bootstrap)
    rows = (
        ClaimRow(c.claim, c.measured, c.agents, c.masks, **vars(c.estimate), verdict=c.verdict)
        for c in claims
    )
    write_csv(directory / "claims.csv", ClaimRow, rows)
    _draw(directory, scores, layers, agents, bootstrap)
    pilots = list(_pilots(agents))
    dense = [pilot for pilot in pilots if pilot.pruner == DENSE]
    ablations = list(_ablation_rows(agents, layers, bootstrap))
    if ablations:
        figures.draw_ablation(
            directory / "ablations.svg", agents, _ablations(), Group("bc"), [ABLATED], bootstrap
        )
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False
    )
    environment.filters |= {"listing": listing, "capitalized": _capitalized}
    page = environment.from_string(TEMPLATE.read_text()).render(
        claims=[_ClaimTable.of(claim, claims) for claim in dict.fromkeys(c.claim for c in claims)],
        experiments=experiments,
        unfinished=[each for each in experiments if each.pruned_finished < each.pruned],
        planned=planned,
        updates={
            name(algorithm): main_updates(agents, algorithm) for algorithm in _each(agents, "algorithm")
        },
        algorithms=[name(algorithm) for algorithm in _each(agents, "algorithm")],
        tasks=_each(agents, "task"),
        seeds=listing([str(seed) for seed in _each(agents, "seed")]),
        normalized_seeds=", ".join(map(str, _each(agents[agents["normalize_states"]], "seed"))),
        trained=len(agents),
        confidence=bootstrap.confidence,
        episodes=listing([str(n) for n in _each(agents, "episodes")]),
        error=_standard_errors(agents),
        compute=duration(runs["seconds"].astype(float).sum()),
        processors=listing(_each(runs, "processor")),
        commits=_each(runs, "commit"),
        scores=list(_score_rows(agents, bootstrap)),
        densities=list(_density_rows(layers)),
        blind=list(_blind_rows(layers, normalize_states=False)),
        blind_normalized=list(_blind_rows(layers, normalize_states=True)),
        mask_seeds=listing([str(seed) for seed in _each(layers, "seed")]),
        pilot=[pilot.row() for pilot in pilots],
        pilot_dense=len(dense),
        pilot_within=sum(abs(pilot.percent) <= 5 for pilot in dense),
        normalized=list(_normalized_rows(agents, bootstrap)),
        sparsities=[f"{sparsity:.0%}".replace("%", " %") for sparsity in SPARSITIES],
        by_sparsity=list(_sparsity_rows(agents, bootstrap)),
        ablations=ablations,
        ablated_dense=in_words(score(agents, Group("bc"), [ABLATED], bootstrap)),
    )
    (directory / "README.md").write_text(page)


@dataclasses.dataclass(frozen=True)
class _ClaimTable:
    """A claim's table: a row for each task and algorithm, a column for each kind of mask.

    A row with fewer seeds than others names their number.
    """

    claim: str
    measured: str
    verdicts: Mapping[Verdict, int]
    """Number of agents and masks with each verdict, without those that have too few seeds."""
    too_few_seeds: int
    masks: Sequence[str]
    rows: Sequence[Row]

    @classmethod
    def of(cls, claim: str, claims: Sequence[Claim]) -> Self:
        own = [each for each in claims if each.claim == claim]
        masks = list(dict.fromkeys(each.masks for each in own))
        cells = {(each.agents, each.masks): each for each in own}
        seeds = {each.agents: each.estimate.seeds for each in own}
        most = max(seeds.values())
        fewer = {row: f"{row} ({n} seed{'s' if n > 1 else ''})" for row, n in seeds.items() if n < most}
        verdicts = collections.Counter(each.verdict for each in own)
        too_few_seeds = verdicts.pop("too few seeds", 0)
        rows = [
            (fewer.get(each, each), *(_found(cells.get((each, kind))) for kind in masks)) for each in seeds
        ]
        return cls(claim, own[0].measured, verdicts, too_few_seeds, masks, rows)


def _found(claim: Claim | None) -> str:
    """The estimate, with the verdict if there are enough seeds for one."""
    if claim is None:
        return in_words(None)
    words = in_words(claim.estimate)
    return words if claim.verdict == "too few seeds" else f"{words}: {claim.verdict}"


def _capitalized(words: str) -> str:
    return words[0].upper() + words[1:]


def in_words(estimate: Estimate | None) -> str:
    """`0.93 (0.90 to 0.97)`; without an interval where there are too few seeds for one."""
    if estimate is None:
        return "not run"
    interval = " to ".join(map(_rounded, estimate.interval)) if estimate.interval else "too few seeds"
    return f"{_rounded(estimate.value)} ({interval})"


def _rounded(value: float) -> str:
    return number(value, 2)


def main_groups(algorithm: str) -> list[Group]:
    """The groups that the main experiments compare."""
    pruned = [Group(algorithm, pruner, scope) for scope in (PART, NETWORK) for pruner in MASKS]
    random = [Group(algorithm, "random", scope) for scope in (PART, NETWORK)]
    return [Group(algorithm), *pruned, *random]


def _read(table: Path) -> pandas.DataFrame:
    if not table.exists():
        raise UserError(f"{table}: no such file; run `python -m pipelines study` first")
    read = read_table(table, COLUMNS[table.name])
    return read.assign(scope=read["scope"].fillna(""))


def read_table(table: Path, columns: Sequence[str], **options: Any) -> pandas.DataFrame:
    """Read one of the study's tables, with pandas' `options`.

    Raises:
        UserError: the file is not CSV or lacks one of `columns`, or one of its lines is not a row. So it is
            where git has left the markers of a conflict.
    """
    # With HEAD, as git checks out no other version of a file in conflict.
    fix = f"get it back with `git checkout HEAD {table}`"
    try:
        read = pandas.read_csv(table, **options)
    except ValueError as error:
        raise UserError(f"{table}: {in_a_line(error)}; {fix}") from error
    missing = [column for column in columns if column not in read]
    if missing:
        raise UserError(f"{table}: has no column {missing[0]!r}; {fix}")
    updates = read["updates"]
    wrong = updates[pandas.to_numeric(updates, errors="coerce").isna()]
    if not wrong.empty:
        raise UserError(f"{table}: {wrong.iloc[0]!r} in the column 'updates' is no number; {fix}")
    return read


def _each(table: pandas.DataFrame, column: str) -> list:
    return sorted(table[column].unique())


def _draw(
    directory: Path,
    scores: pandas.DataFrame,
    layers: pandas.DataFrame,
    agents: pandas.DataFrame,
    bootstrap: BootstrapConfig,
) -> None:
    tasks, algorithms = _each(agents, "task"), _each(agents, "algorithm")
    main_length = scores["algorithm"].map({each: main_updates(agents, each) for each in algorithms})
    main = scores[is_main(scores) & (scores["updates"] == main_length)]
    for number_, pruner in enumerate(("snip", "grasp"), start=1):
        figures.draw_learning_curves(directory / f"figure{number_}.svg", main, pruner)
    chosen = layers[is_main(layers) & (layers["sparsity"] == 0.95)]
    chosen = chosen.drop_duplicates([*AGENT, "part", "layer"])  # the pilot has the same masks
    figures.draw_layer_counts(directory / "figure3.svg", chosen)
    groups = [group for algorithm in algorithms for group in main_groups(algorithm)]
    figures.draw_aggregates(directory / "aggregates.svg", agents, groups, tasks, bootstrap)
    own = [group for group in groups if group.scope == PART and "-" not in group.pruner]
    figures.draw_profiles(directory / "profiles.svg", agents, own, tasks, bootstrap)
    figures.draw_controls(directory / "controls.svg", agents, tasks, algorithms, bootstrap)


def _score_rows(agents: pandas.DataFrame, bootstrap: BootstrapConfig) -> Iterator[Row]:
    """Scores in each task, and retention over all; seeds are counted for each task where tasks differ."""
    tasks = _each(agents, "task")
    for algorithm in _each(agents, "algorithm"):
        for group in main_groups(algorithm):
            own = [score(agents, group, [task], bootstrap) for task in tasks]
            if any(own):
                dense = group.pruner == DENSE
                kept = "" if dense else in_words(retained(agents, group, tasks, bootstrap))
                seeds = [each.seeds if each else 0 for each in own]
                counts = ", ".join(map(str, seeds if len(set(seeds)) > 1 else seeds[:1]))
                yield name(algorithm), figures.label(group), counts, *map(in_words, own), kept


def _sparsity_rows(agents: pandas.DataFrame, bootstrap: BootstrapConfig) -> Iterator[Row]:
    """Scores by sparsity (scope part), of the tasks and pruners with more sparsities than 95 %."""
    for algorithm in _each(agents, "algorithm"):
        for task in _each(agents, "task"):
            for pruner in ("snip", "grasp"):
                groups = [Group(algorithm, pruner, sparsity=sparsity) for sparsity in SPARSITIES]
                found = [score(agents, group, [task], bootstrap) for group in groups]
                if sum(map(bool, found)) > 1:
                    seeds = ", ".join(str(each.seeds if each else 0) for each in found)
                    yield f"{task}, {name(algorithm)}", name(pruner), seeds, *map(in_words, found)


def _density_rows(layers: pandas.DataFrame) -> Iterator[Row]:
    """Percentage of its weights that each part keeps at 95 % sparsity where parts compete."""
    competing = layers[is_main(layers, NETWORK) & (layers["sparsity"] == 0.95)]
    competing = competing[competing["pruner"].isin(["snip", "grasp"])]
    for (task, algorithm, pruner), rows in competing.groupby(["task", "algorithm", "pruner"]):
        counts = rows.groupby("part")[["weights_kept", "weights_total"]].sum()
        kept = [_percentage_kept(counts.reindex(own)) for own in PARTS]
        yield f"{task}, {name(str(algorithm))}", name(str(pruner)), *kept


def _blind_rows(layers: pandas.DataFrame, normalize_states: bool) -> Iterator[Row]:
    """Number of state coordinates that an MLP does not read: mean over seeds, and the range if any."""
    chosen = is_main(layers, normalize_states=normalize_states) & (layers["sparsity"] == 0.95)
    main = layers[chosen & (layers["states_total"] > 0)]
    for (task, algorithm, part), rows in main.groupby(["task", "algorithm", "part"]):
        blind = rows["states_total"] - rows["states_kept"]
        counts = [_mean_and_range(blind[rows["pruner"] == pruner]) for pruner in (*MASKS, "random")]
        states = f"{rows['states_total'].iloc[0]:.0f}"
        yield f"{task}, {name(str(algorithm))}, {part}", states, *counts


def _mean_and_range(counts: "pandas.Series[float]") -> str:
    if counts.empty:
        return ""
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{counts.mean():.1f} ({low} to {high})"


@dataclasses.dataclass(frozen=True)
class _Pilot:
    """Mean scores of the same seeds after the main experiment's updates, and after twice as many."""

    agents: str
    pruner: str
    main: float
    longer: float

    @property
    def percent(self) -> float:
        """Difference of the main experiment's score, in percent of the longer training's."""
        return 100 * (self.main / self.longer - 1)

    def row(self) -> Row:
        points = f"{self.main - self.longer:+.1f}"
        percent = f"{self.percent:+.0f}" if self.pruner == DENSE else ""
        return self.agents, name(self.pruner), f"{self.main:.1f}", f"{self.longer:.1f}", points, percent


def _pilots(agents: pandas.DataFrame) -> Iterator[_Pilot]:
    main_agents = agents[is_main(agents) & agents["sparsity"].isin([0, 0.95])]
    for (task, algorithm, pruner), rows in main_agents.groupby(["task", "algorithm", "pruner"]):
        updates = main_updates(agents, str(algorithm))
        longer = rows[rows["updates"] > updates]
        main = rows[(rows["updates"] == updates) & rows["seed"].isin(longer["seed"])]
        if len(longer) and len(main):
            scores = (own["d4rl_score"].mean() for own in (main, longer))
            yield _Pilot(f"{task}, {name(str(algorithm))}", str(pruner), *scores)


def _normalized_rows(agents: pandas.DataFrame, bootstrap: BootstrapConfig) -> Iterator[Row]:
    """Scores with raw and with normalised states."""
    for algorithm in _each(agents, "algorithm"):
        for group in main_groups(algorithm):
            raw, normalized = (
                score(agents, dataclasses.replace(group, normalize_states=value), [ABLATED], bootstrap)
                for value in (False, True)
            )
            if normalized:
                yield name(algorithm), figures.label(group), in_words(raw), in_words(normalized)


def _ablations() -> dict[str, list[tuple[int, Group]]]:
    """The settings that are varied for BC agents: each value with its group."""
    return {
        "transitions scored": [
            (size, Group("bc", pruner, batch_size=size))
            for pruner in ("snip", "grasp")
            for size in BATCH_SIZES
        ],
        "iterations": [
            (rounds, Group("bc", pruner, iterations=rounds))
            for pruner in ("snip", "grasp")
            for rounds in ITERATIONS
        ],
    }


def _ablation_rows(
    agents: pandas.DataFrame, layers: pandas.DataFrame, bootstrap: BootstrapConfig
) -> Iterator[Row]:
    """Rows of varied settings, without pruners for which only the usual setting was run."""
    output = layers[(layers["task"] == ABLATED) & (layers["layer"] == OUTPUT_LAYER)]
    for what, groups in _ablations().items():
        found = []
        for setting, group in groups:
            estimate = score(agents, group, [ABLATED], bootstrap)
            if estimate:
                kept = _percentage_kept(group.rows(output))
                found.append(
                    (what, str(setting), name(group.pruner), str(estimate.seeds), kept, in_words(estimate))
                )
        settings = collections.Counter(row[2] for row in found)
        yield from (row for row in found if settings[row[2]] > 1)


def _percentage_kept(layers: pandas.DataFrame) -> str:
    """Percentage of their weights that `layers` keep together; empty without layers."""
    kept, total = layers[["weights_kept", "weights_total"]].sum()
    return f"{100 * kept / total:.2f}" if total else ""


def _standard_errors(agents: pandas.DataFrame) -> str:
    """The standard error of an agent's score over its last episodes, in points: median, maximum, and how many
    agents miss the goal of 2 points.

    `return_std` is the deviation of the episodes themselves, so it is divided by √(n - 1), not √n.
    """
    errors = []
    for _, own in agents.groupby("task"):
        points_per_return = np.polyfit(own["return_mean"], own["d4rl_score"], 1)[0]
        errors.append(points_per_return * own["return_std"] / (own["episodes"] - 1) ** 0.5)
    all_errors = pandas.concat(errors)
    missed = (all_errors > ERROR_GOAL).sum()
    median, most = number(all_errors.median(), 2), number(all_errors.max(), 2)
    goal = f"the goal of {ERROR_GOAL} points is missed by {missed} of {len(all_errors)} agents"
    return f"{median} points in the median, {most} at most; {goal}"
