"""The pages of docs/study, made only from the study's tables.

The prose of each page is a template in `templates/study/`, which calls the methods of :class:`Page` for its
tables. A table of agents that are not trained is empty, and its section is left out.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas

from singleshot.errors import UserError, in_a_line
from singleshot.pruning.variant import DENSE
from tasks.reporting.agent_scores import agent_scores
from tasks.reporting.look import name
from tasks.reporting.statistics import MIN_SEEDS, BootstrapConfig, Paired, variance_components
from tasks.reporting.study import figures
from tasks.reporting.study.claims import (
    CLAIMS,
    KEPT,
    OWN_ALGORITHMS,
    Claim,
    ClaimRow,
    Entry,
    adjusted_p_values,
    claim_rows,
)
from tasks.reporting.study.comparison import (
    AGENT,
    ENVIRONMENT,
    KEY,
    NETWORK,
    SETTINGS,
    SHARED,
    Group,
    Study,
    with_draws,
)
from tasks.reporting.words import count, duration, exact_percent, listing, number
from tasks.tables import write_csv

TEMPLATES = Path(__file__).parents[1] / "templates" / "study"
COLUMNS = {
    table: (*SETTINGS, *AGENT, *own)
    for table, own in {
        "scores.csv": ("update", "return_mean", "return_std", "d4rl_score", "episodes"),
        "layers.csv": ("part", "layer", "weights_total", "weights_kept", "states_total", "states_kept"),
        "runs.csv": ("commit", "processor", "seconds"),
    }.items()
}
"""The columns that the pages are made from."""
MASKS = ("snip", "snip-shuffled", "grasp", "grasp-shuffled", "random")
SPARSITIES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
PARTS = (["encoder"], ["decoder"], ["actor"], ["critic 1", "critic 2"])
"""The parts that each column of the table of densities counts."""
OUTPUT_LAYER = "decoder.2"
"""The layer whose outputs are BC's actions."""
STATES = {False: "raw", True: "normalised"}
DRAWS = {"own": "own", SHARED: "one"}
"""The data sets of a row's agents in words: each seed's own, or one for all seeds."""
NOT_RUN, TOO_FEW = "–", "too few seeds"
Row = Sequence[str]


@dataclasses.dataclass(frozen=True)
class ExperimentProgress:
    """An experiment, with the numbers of its agents, and how many of them are trained."""

    name: str
    pruned: int
    pruned_finished: int
    dense: int
    dense_finished: int


def write_page(
    directory: Path, experiments: Sequence[ExperimentProgress], planned: int, bootstrap: BootstrapConfig
) -> None:
    """Write the pages, `claims.csv` and the figures into `directory`, which has the study's tables.

    `planned` is the number of different agents in all experiments.

    Raises:
        UserError: a table is missing or damaged.
    """
    page = Page(read_study(directory, bootstrap), experiments, planned)
    found = {key: claim.entries(page.study) for key, claim in CLAIMS.items()}
    page.entries.update(found)
    write_csv(directory / "claims.csv", ClaimRow, claim_rows(found))
    page.drawings.extend(_draw(directory, page))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )
    environment.filters["listing"] = listing
    for template in sorted(TEMPLATES.glob("*.md")):
        text = environment.get_template(template.name).render(page=page, study=page.study)
        (directory / template.name).write_text(text, encoding="utf-8")


def read_study(directory: Path, bootstrap: BootstrapConfig) -> Study:
    """The tables in `directory`.

    Raises:
        UserError: a table is missing or damaged.
    """
    scores, layers, runs = (with_draws(_read(directory / table)) for table in COLUMNS)
    return Study(scores, agent_scores(scores, [*SETTINGS, *AGENT, "draws"]), layers, runs, bootstrap)


@dataclasses.dataclass(frozen=True)
class Page:
    """What the templates call."""

    study: Study
    experiments: Sequence[ExperimentProgress]
    planned: int
    entries: dict[str, Sequence[Entry]] = dataclasses.field(default_factory=dict)
    """What was found on each claim."""
    drawings: list[str] = dataclasses.field(default_factory=list)
    """Names of the figures."""

    def table(
        self,
        field: str,
        values: Iterable[Any],
        against: Any = None,
        *,
        other_data: bool = False,
        **fixed: Any,
    ) -> str:
        """A table of scores: a column for each value of a setting, a row for agents that have any two.

        Agents are those on the kind of draws of the data that has more of them, or those on the other kind.

        Rows are of all algorithms, environments and kinds of states, unless `fixed` says otherwise; it also
        fixes other fields of :class:`~tasks.reporting.study.comparison.Group`. Scores that differ from those
        in the column `against` are bold.
        """
        chosen = {
            label: [Group(**{**row, **fixed, field: value}) for value in values]
            for label, row in self._kinds(fixed)
        }
        on_draws = self.study.on_other_draws if other_data else self.study.on_best_draws
        rows = {label: on_draws(groups) for label, groups in chosen.items()}
        scores = {label: [self.study.score(group) for group in groups] for label, groups in rows.items()}
        rows = {label: groups for label, groups in rows.items() if sum(map(bool, scores[label])) > 1}
        different = self._different(rows, list(values).index(against)) if against is not None else set()
        shown = [i for i, _ in enumerate(values) if any(scores[label][i] for label in rows)]
        lines = []
        for label, groups in rows.items():
            seeds = max(own.seeds for own in scores[label] if own)
            cells = [
                self._cell(groups[i], scores[label][i], seeds, bold=(label, i) in different) for i in shown
            ]
            lines.append((label, f"{seeds}, {DRAWS[groups[0].draws]}", *cells))
        heads = [_heading(field, value) for value in values]
        return _markdown(["agents", "seeds, data sets", *(heads[i] for i in shown)], lines)

    def _kinds(self, fixed: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The rows of a table in words, with their fields of a group."""
        for algorithm in [fixed["algorithm"]] if "algorithm" in fixed else self.study.each("algorithm"):
            for environment in self.study.each(ENVIRONMENT):
                for normalized in [fixed["normalize_states"]] if "normalize_states" in fixed else STATES:
                    label = f"{environment}, {name(algorithm)}, {STATES[normalized]}"
                    row = {"environment": environment, "algorithm": algorithm}
                    yield label, row | {"normalize_states": normalized}

    def _different(self, rows: Mapping[str, Sequence[Group]], reference: int) -> set[tuple[str, int]]:
        """The cells whose difference from the cell of column `reference` both tests show, after Holm."""
        cells = {
            (label, i): found
            for label, groups in rows.items()
            for i, group in enumerate(groups)
            if i != reference and (found := self.study.compare(group, self._reference(groups[reference])))
        }
        adjusted = adjusted_p_values(list(cells.values()))
        return {cell for cell, p in zip(cells, adjusted, strict=True) if self._shown(p)}

    def _reference(self, group: Group) -> Group:
        return self.study.dense_of(group) if group.pruner == DENSE else group

    def _cell(self, group: Group, score: Paired | None, seeds: int, *, bold: bool) -> str:
        """`85 (84 to 87) ±4`: the mean, its interval, and the spread between evaluations."""
        if score is None:
            return NOT_RUN
        fewer = f"; {count(score.seeds, 'seed')}" if score.seeds < seeds and score.interval else ""
        words = in_words(score).replace(")", f"{fewer})")
        if not score.interval:
            words = f"{_rounded(score.value)} ({count(score.seeds, 'seed')})"
        spread = self.study.spread(group)
        words = f"**{words}**" if bold else words
        return words if np.isnan(spread) else f"{words} ±{_rounded(spread)}"

    def costs(self, recipes: Sequence[Mapping[str, Any]]) -> list[str]:
        """Points that each recipe's agents score more than dense ones, for each environment; "" if not run.

        A recipe has the fields of a :class:`~tasks.reporting.study.comparison.Group` but for the environment.
        Costs are bold if both tests show them, after Holm over all of them.
        """
        found = {}
        for i, recipe in enumerate(recipes):
            for environment in self.study.each(ENVIRONMENT):
                group = Group(environment, **recipe)
                own, _ = self.study.on_best_draws([group, group.dense()])
                if cost := self.study.compare(own, self.study.dense_of(own)):
                    found[i, environment] = cost
        words: list[list[str]] = [[] for _ in recipes]
        adjusted = adjusted_p_values(list(found.values()))
        for ((i, environment), cost), p in zip(found.items(), adjusted, strict=True):
            points = f"**{_signed(cost)}**" if self._shown(p) else _signed(cost)
            words[i].append(f"{environment} {points}")
        return ["; ".join(own) for own in words]

    def with_costs(self, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The rows, whose last cells are recipes, with the costs of these."""
        return [(*row, cost) for row, cost in zip(rows, self.costs([row[-1] for row in rows]), strict=True)]

    def mask_costs(self, pruners: Sequence[str], *, normalize_states: bool) -> str:
        """A table of what masks cost: a row for each algorithm that was run, a column for each pruner."""
        kinds = [
            {"algorithm": each, "normalize_states": normalize_states} for each in self.study.each("algorithm")
        ]
        rows = [(name(kind["algorithm"]), *costs) for kind, costs in self._costs_by_pruner(kinds, pruners)]
        return _markdown(["agents", *map(name, pruners)], [row for row in rows if any(row[1:])])

    def costs_of_others(self) -> str:
        """What SNIP and a narrow dense network cost where the paper has no agents, on normalised states."""
        agents = self.study.agents[~self.study.agents["algorithm"].isin(OWN_ALGORITHMS)]
        lengths = sorted(set(zip(agents["algorithm"], agents["updates"].astype(int), strict=True)))
        kinds = [
            {"algorithm": algorithm, "updates": updates, "normalize_states": True}
            for algorithm, updates in lengths
        ]
        rows = [
            (name(kind["algorithm"]), f"{kind['updates']:,}", *(cost or NOT_RUN for cost in costs))
            for kind, costs in self._costs_by_pruner(kinds, ("snip", "small"))
        ]
        return _markdown(["agents", "updates", "SNIP", "narrow dense network"], rows)

    def _costs_by_pruner(
        self, kinds: Sequence[Mapping[str, Any]], pruners: Sequence[str]
    ) -> Iterator[tuple[Mapping[str, Any], list[str]]]:
        """Each kind of agents, with the cost of each pruner; both tests are corrected over all of them."""
        costs = iter(self.costs([{**kind, "pruner": pruner} for kind in kinds for pruner in pruners]))
        for kind in kinds:
            yield kind, [next(costs) for _ in pruners]

    def _shown(self, p: tuple[float, float] | None) -> bool:
        """Whether both adjusted p-values show a difference."""
        return p is not None and max(p) < 1 - self.study.bootstrap.confidence

    def claim_table(self, key: str) -> str:
        """A claim's entries: a row for each kind of agents, a column for each kind of mask.

        Rows in which no entry has the seeds for an interval are left out.
        """
        entries = self.entries[key]
        write = _hundredths if CLAIMS[key].measured.startswith(KEPT) else _rounded
        masks = list(dict.fromkeys(entry.masks for entry in entries))
        cells = {(entry.agents, entry.normalize_states, entry.masks): entry for entry in entries}
        rows = []
        for agents, normalized in dict.fromkeys((entry.agents, entry.normalize_states) for entry in entries):
            own = [cells.get((agents, normalized, each)) for each in masks]
            if all(entry is None or entry.verdict == TOO_FEW for entry in own):
                continue
            draws = {DRAWS.get(entry.draws, "") for entry in own if entry}
            found = (_found(entry, write) for entry in own)
            rows.append((f"{agents}, {STATES[normalized]}", "/".join(sorted(draws)), *found))
        return _markdown(["agents", "data sets", *masks], rows)

    def verdicts(self, key: str, *, normalize_states: bool, updates: int = 0) -> str:
        """A claim's verdicts on one kind of states, with the number of entries for each environment."""
        own = [
            entry
            for entry in self.entries[key]
            if (entry.normalize_states, entry.updates) == (normalize_states, updates)
        ]
        judged = [entry for entry in own if entry.verdict != TOO_FEW]
        if not judged:
            return TOO_FEW if own else NOT_RUN
        totals = collections.Counter(entry.environment for entry in judged)
        parts = []
        for verdict in ("holds", "does not hold", "undecided"):
            counts = collections.Counter(entry.environment for entry in judged if entry.verdict == verdict)
            if counts:
                of = ", ".join(f"{each} {n} of {totals[each]}" for each, n in sorted(counts.items()))
                parts.append(f"{verdict if verdict == 'undecided' else f'**{verdict}**'}: {of}")
        return "; ".join(parts)

    def claims(self, whose: str) -> str:
        """The verdicts on the claims of the `paper` or on `ours`, on raw and on normalised states."""
        rows = []
        for key, claim in self.of(whose):
            for updates in sorted({entry.updates for entry in self.entries[key]}):
                found = [self.verdicts(key, normalize_states=each, updates=updates) for each in STATES]
                longer = f", after {updates:,} updates" if updates else ""
                if not updates or set(found) - {NOT_RUN, TOO_FEW}:
                    rows.append((claim.sentence + longer, *found))
        return _markdown(["claim", "raw states", "normalised states"], rows)

    def density_table(self) -> str:
        """Percentage of its weights that each part keeps at 95 % sparsity where parts compete."""
        rows = []
        for normalized, words in STATES.items():
            layers = self.study.main_layers(normalized, NETWORK)
            layers = layers[layers["pruner"].isin(["snip", "grasp"])]
            for (environment, algorithm, pruner), own in layers.groupby([ENVIRONMENT, "algorithm", "pruner"]):
                parts = own.groupby("part")[["weights_kept", "weights_total"]].sum()
                kept = [_percentage_kept(parts.reindex(names)) for names in PARTS]
                agents = f"{environment}, {name(str(algorithm))}, {words}"
                rows.append((agents, name(str(pruner)), *kept))
        return _markdown(["agents", "pruner", "encoder", "decoder", "actor", "critics"], rows)

    def blind_table(self, *, normalize_states: bool) -> str:
        """Number of state coordinates that an MLP does not read: mean over seeds, and the range if any."""
        layers = self.study.main_layers(normalize_states)
        rows = []
        for (environment, algorithm, part), own in layers[layers["states_total"] > 0].groupby(
            [ENVIRONMENT, "algorithm", "part"]
        ):
            blind = own["states_total"] - own["states_kept"]
            counts = [_mean_and_range(blind[own["pruner"] == pruner]) for pruner in MASKS]
            states = f"{own['states_total'].iloc[0]:.0f}"
            rows.append((f"{environment}, {name(str(algorithm))}, {part}", states, *counts))
        return _markdown(["MLP", "coordinates", *map(name, MASKS)], rows)

    def last_layer_density(self, field: str, values: Sequence[int], pruner: str) -> str:
        """Percentage of its weights that BC's last layer keeps on HalfCheetah, by the values of a setting."""
        output = self.study.layers[self.study.layers["layer"] == OUTPUT_LAYER]
        kept = []
        for value in values:
            group = Group("HalfCheetah", "bc", pruner)
            key = self.study.key(dataclasses.replace(group, **{field: value}))  # type: ignore[arg-type]
            kept.append(_percentage_kept(output[(output[list(KEY)] == list(key)).all(axis=1)]) or NOT_RUN)
        return _markdown([_heading(field, value) for value in values], [kept])

    def component_table(self) -> str:
        """Standard deviations of agents' scores between draws of the data and between training seeds."""
        rows = []
        agents = self.study.agents[self.study.agents["draws"] != SHARED]
        for key, own in agents.groupby([each for each in KEY if each != "draws"]):
            grid = own.pivot(index="data_seed", columns="seed", values="d4rl_score")
            grid = grid.dropna(axis=1, thresh=2).dropna()
            if min(grid.shape) > 1:
                environment, algorithm, pruner, normalized = map(str, key[:4])
                label = f"{environment}, {name(algorithm)}, {STATES[normalized == 'True']}"
                shape = " × ".join(map(str, grid.shape))
                deviations = map(_rounded, variance_components(grid.to_numpy()))
                rows.append((label, name(pruner), shape, *deviations))
        head = ["agents", "masks", "draws × seeds", "between draws", "between seeds", "rest"]
        return _markdown(head, sorted(rows))

    def experiment_table(self, *, unfinished: bool) -> str:
        """The experiments with their numbers of agents, or those that are not finished."""
        rows = [
            (f"`{own.name}`", *map(str, dataclasses.astuple(own)[1:]))
            for own in self.experiments
            if not unfinished or own.pruned_finished < own.pruned or own.dense_finished < own.dense
        ]
        return _markdown(["experiment", "pruned agents", "trained", "dense agents", "trained"], rows)

    sparsities = SPARSITIES

    def of(self, whose: str) -> list[tuple[str, Claim]]:
        """The claims of the `paper` or `ours` of which there are agents."""
        return [(key, claim) for key, claim in CLAIMS.items() if claim.whose == whose and self.entries[key]]

    def sentence(self, key: str) -> str:
        """A claim in words."""
        return CLAIMS[key].sentence

    def name(self, word: str) -> str:
        """The name of an algorithm, or of a kind of mask."""
        return name(word)

    def any(self, pruners: Sequence[str]) -> bool:
        """Whether there are agents of any of these pruners."""
        return bool(self.study.agents["pruner"].isin(pruners).any())

    def failed_episodes(self) -> list[str]:
        """The shares of failed episodes in own draws of the data; empty if episodes are as they come."""
        own = self.study.agents[self.study.agents["draws"] == "own"]
        return sorted(own["failed_episodes"].unique(), key=lambda share: float(share or "inf"))

    def updates(self) -> str:
        """The usual number of updates of each algorithm."""
        by_updates: dict[int, list[str]] = {}
        for algorithm, n in self.study.usual_updates.items():
            by_updates.setdefault(n, []).append(name(algorithm))
        if len(by_updates) == 1:
            return f"{min(by_updates):,}"
        return listing([f"{n:,} ({listing(own)})" for n, own in by_updates.items()])

    def longest(self, algorithm: str, pruner: str) -> int:
        """The most updates that three seeds have on normalised states; 0 if it is the usual number."""
        own = self.study.agents[
            (self.study.agents["algorithm"] == algorithm)
            & (self.study.agents["pruner"] == pruner)
            & (self.study.agents["normalize_states"] == "True")
        ]
        seeds = own.groupby("updates")["seed"].nunique()
        most = max(seeds.index[seeds >= MIN_SEEDS], default=0)
        return int(most) if most > self.study.usual_updates.get(algorithm, 0) else 0

    def with_time(self, algorithm: str, updates: int) -> str:
        """What a reader has who trains an algorithm for so many updates, beside the row of usual length."""
        usual = f"{self.study.usual_updates.get(algorithm, 0):,}"
        as_long = self.longest(algorithm, DENSE) == updates
        beside = "" if as_long else f" (beside dense agents after {usual})"
        return f"the same, and time for {updates:,} updates{beside}"

    def lengths(self) -> list[int]:
        """All numbers of updates that agents train for."""
        return [int(each) for each in self.study.each("updates")]

    def algorithms(self) -> str:
        """The names of the algorithms."""
        return listing(map(name, self.study.each("algorithm")))

    def compute(self, *, shared: bool) -> str:
        """How many agents were trained on one data set, or on draws of their own, and how long that took."""
        runs = self.study.runs
        own = runs[(runs["data_seed"] == SHARED) == shared]
        return f"{count(len(own), 'agent')}, in {duration(own['seconds'].astype(float).sum())}"

    def spreads(self) -> str:
        """How far the evaluations that count for one agent differ."""
        spread = self.study.agents["spread"]
        return f"{_rounded(spread.median())} points in the median and {_rounded(spread.max())} at most"


def _draw(directory: Path, page: Page) -> Iterator[str]:
    """Draw the figures for which there are agents, and name them."""
    study = page.study
    main = _main(study)
    usual = main["algorithm"].map(study.usual_updates)
    short, long = main[main["updates"] == usual], main[main["updates"] > usual]
    for number_, pruner in enumerate(("snip", "grasp"), start=1):
        figures.draw_learning_curves(directory / f"figure{number_}.svg", short, pruner)
        yield f"figure{number_}.svg"
    if len(long):
        figures.draw_long_training(directory / "length.svg", long[long["sparsity"].isin([0, Group.sparsity])])
        yield "length.svg"
    for normalized, file in {False: "figure3.svg", True: "figure3-normalized.svg"}.items():
        layers = study.main_layers(normalized)
        if len(layers):
            figures.draw_layer_counts(directory / file, layers)
            yield file
    figures.draw_costs(directory / "costs.svg", _costs(study))
    yield "costs.svg"


def _main(study: Study) -> pandas.DataFrame:
    """The evaluations of the main comparison's agents, of any length and sparsity, each seed once."""
    agents = study.agents[["algorithm", "pruner", ENVIRONMENT, "normalize_states", "updates", "sparsity"]]
    parts = []
    for algorithm, pruner, environment, states, updates, sparsity in agents.drop_duplicates().itertuples(
        index=False
    ):
        group = Group(environment, algorithm, pruner, states == "True", updates=updates, sparsity=sparsity)
        (best,) = study.on_best_draws([group])
        parts.append(study.evaluations_of(best))
    return pandas.concat(parts)


def _costs(study: Study) -> dict[str, dict[str, dict[str, Paired]]]:
    """By kind of agents and environment, the points that each kind of mask scores more than dense agents."""
    found: dict[str, dict[str, dict[str, Paired]]] = {}
    for algorithm in study.each("algorithm"):
        for normalized, words in STATES.items():
            for environment in study.each(ENVIRONMENT):
                groups = [Group(environment, algorithm, each, normalized) for each in (DENSE, *MASKS)]
                dense, *pruned = study.on_best_draws(groups)
                for group in pruned:
                    if cost := study.compare(group, dense):
                        rows = found.setdefault(f"{name(algorithm)}, {words} states", {})
                        rows.setdefault(environment, {})[group.pruner] = cost
    return found


def _heading(field: str, value: Any) -> str:
    """The heading of a column for a value of a group's field."""
    if field == "pruner":
        return name(value)
    if field == "sparsity":
        return f"{exact_percent(value)} pruned"
    if field == "failed_episodes":
        return f"{exact_percent(float(value))} failed" if value else "as they come"
    if isinstance(value, bool):
        return f"{STATES[value]} states"
    return f"{value:,}"


def _markdown(head: Sequence[str], rows: Sequence[Row]) -> str:
    """A table in Markdown; empty without rows."""
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rounded(value: float) -> str:
    """Two significant digits, but whole numbers in full, and no more than two after the point."""
    size = abs(value)
    if size >= 10:
        return f"{value:,.0f}"
    return number(value, 2) if size >= 0.1 else number(round(value, 3 if size >= 0.01 else 2), 2)


def _hundredths(value: float) -> str:
    return f"{value:.2f}"


def _found(entry: Entry | None, write: Callable[[float], str]) -> str:
    """The estimate, with the verdict if there are enough seeds for one; bold if it is decided."""
    if entry is None:
        return NOT_RUN
    if entry.verdict == TOO_FEW:
        return f"{write(entry.estimate.value)} ({count(entry.estimate.seeds, 'seed')})"
    words = f"{in_words(entry.estimate, write)}: {entry.verdict}"
    return words if entry.verdict == "undecided" else f"**{words}**"


def in_words(estimate: Paired, write: Callable[[float], str] = _rounded) -> str:
    """`0.93 (0.90 to 0.97)`; without an interval where there are too few seeds for one."""
    interval = " to ".join(map(write, estimate.interval)) if estimate.interval else "too few seeds"
    return f"{write(estimate.value)} ({interval})"


def _signed(estimate: Paired) -> str:
    """`−59 (−66 to −55)`, in whole points."""
    if not estimate.interval:
        return f"{_points(estimate.value)} ({count(estimate.seeds, 'seed')})"
    return f"{_points(estimate.value)} ({' to '.join(map(_points, estimate.interval))})"


def _points(value: float) -> str:
    return f"{round(value):+d}".replace("-", "−") if round(value) else "0"


def _mean_and_range(counts: "pandas.Series[float]") -> str:
    if counts.empty:
        return ""
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{counts.mean():.1f} ({low} to {high})"


def _percentage_kept(layers: pandas.DataFrame) -> str:
    """Percentage of their weights that `layers` keep together; empty without layers."""
    kept, total = layers[["weights_kept", "weights_total"]].sum()
    return f"{100 * kept / total:.2f}" if total else ""


def _read(table: Path) -> pandas.DataFrame:
    if not table.exists():
        raise UserError(f"{table}: no such file; run `python -m pipelines study` first")
    read = read_table(table, COLUMNS[table.name], dtype=str, keep_default_na=False)
    text = {*SETTINGS, ENVIRONMENT, "algorithm", "pruner", "part", "layer", "network"} - {"updates"}
    text |= {"commit", "processor", "finished"}
    return read.assign(**{each: pandas.to_numeric(read[each]) for each in set(read) - text})


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
