"""Fill the numbers of README.md and docs/study, draw two figures and write claims.csv, from the tables there.

    python docs/study/make_page.py

`scores.csv` has every evaluation, `layers.csv` the weights that masks keep, `runs.csv` a row for each agent;
`python -m pipelines study` adds to them. A page's words are written by hand; what is between `<!-- name -->`
and `<!-- end -->` is written here, by :func:`parts`, from what agents there are.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import scipy.stats
import yaml
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EVALUATIONS = 5
"""An agent's score is the mean of this number of its last evaluations."""
MIN_SEEDS = 3
"""Fewer seeds have no interval."""


class Setting(NamedTuple):
    """A column of the tables in which agents may differ."""

    of: str
    """What it is a setting of: the `kind` of agent, its `training` or its `masks`."""
    key: str
    """Its key in the configuration, by which conf/study.yaml plans it."""
    usual: str | Mapping[str, str]
    """Its usual value; by algorithm or pruner where it depends on them, with "" for the others."""
    words: str
    """How the pages name another value."""


RATE = {"bc": "0.001", "bcq": "0.001", "": "0.0003"}
HIDDEN = {"bc": "750-750", "bcq": "400-300", "": "256-256"}
BATCH = {"td3bc": "256", "iql": "256", "": "100"}
SCORED = {"grasp": "200", "": "100"}
SETTINGS = {  # a new column of settings is a new line here
    "hidden": Setting("kind", "algorithms.{}.hidden", HIDDEN, "{} units"),
    "updates": Setting("training", "training.{}.updates", "25000", "{:,} updates"),
    "learning_rate": Setting("kind", "algorithms.{}.learning_rate", RATE, "learning rate {:g}"),
    "initialization": Setting("kind", "algorithms.{}.initialization", "linear", "initial weights by {}"),
    "transitions": Setting("training", "data.transitions", "1000000", "{:,} transitions"),
    "batch_size": Setting("training", "algorithms.{}.batch_size", BATCH, "batches of {}"),
    "failed_episodes": Setting("training", "data.failed_episodes", "0", "{:.0%} failed episodes"),
    "scope": Setting("masks", "pruning.scope", "part", "scope {}"),
    "pruning_batch_size": Setting("masks", "pruning.batch_size", SCORED, "{:,} transitions"),
    "pruning_iterations": Setting("masks", "pruning.iterations", {"synflow": "100", "": "1"}, "{} rounds"),
}  # fmt: skip
CASE = ["environment", "kind", "states", "data", "training"]
"""Columns of :func:`described` tables in which agents agree that are compared with each other."""
MASK = ["pruner", "sparsity", "masks"]
KINDS = {"bc": "BC (VAE)", "bc mlp": "BC (MLP)", "bcq": "BCQ", "td3bc": "TD3+BC", "iql": "IQL"}
PAPER = ("BC (VAE)", "BCQ")
OF_71_000 = ("BC (MLP), 256-256 units", "TD3+BC, learning rate 0.001")
OF_580_000 = ("BC (VAE)", "BC (MLP)", "TD3+BC, 750-750 units, learning rate 0.001")
FIGURE_A = OF_71_000 + OF_580_000
TITLES = {
    "BC (VAE)": "BC (VAE), 750 units", "BC (MLP)": "BC (MLP), 750 units",
    "BC (MLP), 256-256 units": "BC (MLP), 256 units", "TD3+BC, learning rate 0.001": "TD3+BC, 256 units",
    "TD3+BC, 750-750 units, learning rate 0.001": "TD3+BC, 750 units",
}  # fmt: skip
"""Titles of figure A's panels; all have the learning rate 0.001."""
"""Figure A's kinds of agents: dense networks that act with about 71,000 and with about 580,000 weights."""
NAMES = {
    "dense": "dense", "snip": "SNIP", "grasp": "GraSP", "small": "narrow dense", "erk": "ERK", "set": "SET",
    "rigl": "RigL", "finetuned": "magnitude after training", "gradual": "gradual magnitude",
    "snip-shuffled": "SNIP, shuffled", "grasp-shuffled": "GraSP, shuffled",
    "snip-blind": "dense, blind as SNIP",
    "snip-shuffled-first": "SNIP, first layers shuffled", "snip-shuffled-rest": "SNIP, other layers shuffled",
}  # fmt: skip
LOOK = {
    "dense": ("#1f2933", "*"), "snip": ("#0072b2", "o"), "small": ("#d55e00", "s"), "erk": ("#009e73", "^"),
    "snip-shuffled": ("#56b4e9", "v"), "gradual": ("#cc79a7", "D"), "rigl": ("#f0e442", "P"),
}  # fmt: skip
RC = {"font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"}
RC |= {"axes.titlesize": "medium", "svg.hashsalt": "study"}  # equal drawings give equal bytes
STATES = {"False": "raw", "True": "normalised"}
AS_THEY_COME, A_TENTH = "failed episodes as they come", "10% failed episodes"
ON_NORMALISED, ON_RAW = "scored on normalised states", "scored on raw states"
NOT_TRIED, NOT_TRAINED = "not tried", "not trained yet"
Key = tuple[Any, ...]


class Estimate(NamedTuple):
    """A mean over seeds with its 95 % interval by Student's t; without one below `MIN_SEEDS`."""

    value: float
    low: float
    high: float
    p: float
    """Two-sided, of the hypothesis that the mean is zero."""
    seeds: int
    error: float = np.nan
    """Standard error of the mean, of so many degrees of freedom."""
    freedom: float = np.nan

    def p_within(self, margin: float) -> float:
        """P-value of two one-sided tests (equivalence): the mean is less than `margin` from zero."""
        return float(scipy.stats.t.sf((margin - abs(self.value)) / self.error, self.freedom))

    def __str__(self) -> str:
        if self.seeds < MIN_SEEDS:
            return f"{points(self.value)} ({self.seeds} seed{'s' * (self.seeds != 1)})"
        return f"{points(self.value)} ({points(self.low)} to {points(self.high)})"

    @property
    def cell(self) -> str:
        """In bold if the interval excludes zero."""
        return f"**{self}**" if self.low > 0 or self.high < 0 else str(self)


def estimate(values: Iterable[float]) -> Estimate:
    """The mean of one value per seed."""
    array = np.asarray(list(values), dtype=float)
    n, mean = len(array), float(array.mean()) if len(array) else np.nan
    if n < MIN_SEEDS:
        return Estimate(mean, np.nan, np.nan, np.nan, n)
    return by_t(mean, float(array.std(ddof=1) / n**0.5), n - 1, n)


def by_t(mean: float, error: float, freedom: float, seeds: int) -> Estimate:
    """The estimate with this standard error of so many degrees of freedom."""
    half = float(scipy.stats.t.ppf(0.975, freedom)) * error
    p = float(2 * scipy.stats.t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
    return Estimate(mean, mean - half, mean + half, p, seeds, error, freedom)


def points(value: float) -> str:
    """One digit after the point below ten and none above, with a minus sign that is one."""
    digits = int(abs(value) < 9.95)
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def lost(found: Estimate) -> str:
    """How many points fewer, as a sentence says that something loses them."""
    value, low, high = (points(-each).lstrip("+") for each in (found.value, found.high, found.low))
    return f"{value} ({low} to {high})"


def probability(p: float) -> str:
    """A p-value in a sentence."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def score(found: Any) -> str:
    """A mean score and its interval, of an estimate or a row that has its fields, in whole points."""
    interval = f" ({round(found.low)} to {round(found.high)})" if found.seeds >= MIN_SEEDS else ""
    return f"{round(found.value)}{interval}".replace("-", "−")


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm 1979), to which those count that are not known yet."""
    adjusted, largest = list(p_values), 0.0
    order = sorted((i for i, p in enumerate(p_values) if not np.isnan(p)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        largest = adjusted[i] = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
    return adjusted


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a sentence in its place if it has no rows."""
    if not rows:
        return "The agents that this table compares are not trained yet."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def usual(column: str, algorithm: str, pruner: str) -> str:
    """The usual value of a setting."""
    value = SETTINGS[column].usual
    if isinstance(value, str):
        return value
    return next((value[name] for name in (algorithm, pruner.partition("-")[0]) if name in value), value[""])


def deviation(column: str, row: Mapping[str, Any]) -> str:
    """What a table says of a setting that is not the usual one."""
    setting, value = SETTINGS[column], str(row[column])
    if column == "failed_episodes" and value == "":
        return "" if row["data_seed"] == "shared" else AS_THEY_COME
    masked = row["pruner"] not in ("dense", "small")
    if value in ("", usual(column, row["algorithm"], row["pruner"])) or (
        setting.of == "masks" and not masked
    ):
        return ""
    return setting.words.format(yaml.safe_load(value))


def described(rows: pandas.DataFrame) -> pandas.DataFrame:
    """A table with the columns of `CASE` and `masks`, in words, beside the columns of settings."""
    known = [column for column in SETTINGS if column in rows]
    words: dict[str, list[str]] = {"kind": [], "training": [], "masks": []}
    for row in rows.to_dict("records"):
        found = {of: [deviation(c, row) for c in known if SETTINGS[c].of == of] for of in words}
        kind = f"{row['algorithm']} {row['actor']}".removesuffix(" vae").strip()
        found["kind"].insert(0, KINDS.get(kind, kind))
        scored = row["pruning_normalize_states"]
        if row["pruner"] not in ("dense", "small") and scored not in ("", row["normalize_states"]):
            found["masks"].append(f"scored on {STATES[scored]} states")
        for of, parts in found.items():
            words[of].append(", ".join(filter(None, parts)))
    own = np.where(rows["data_seed"] == rows["seed"], "own", "?")
    data = np.where(rows["data_seed"] == "shared", "one", own)
    states = rows["normalize_states"].map(STATES)
    return rows.assign(**words, data=data, states=states, sparsity=rows["sparsity"].astype(float))


def narrow(inputs: int, hidden: int, outputs: int, density: float) -> int:
    """Weights of the MLP of two equal hidden layers that is nearest to this share of the weights."""
    counts = [width * (inputs + width + outputs) for width in range(1, hidden + 1)]
    return min(counts, key=lambda count: abs(count - density * counts[-1]))


def planned() -> Iterator[tuple[str, pandas.DataFrame]]:
    """The experiments of conf/study.yaml, each with its agents."""
    profile = yaml.safe_load((ROOT / "conf/profile/study.yaml").read_text("utf-8"))
    environments = next(each["override /environment"] for each in profile["defaults"][1:])
    sweep = {"environment": environments, "algorithms": ["bc", "bcq"], "sparsities": [0, 0.95]}
    sweep |= profile["offline_rl"]["sweep"]
    for name, overrides in yaml.safe_load((ROOT / "conf/study.yaml").read_text("utf-8")).items():
        items = (each.split("=", 1) for each in overrides)
        given = {key.removeprefix("offline_rl."): yaml.safe_load(value) for key, value in items}
        own = sweep | {key.removeprefix("sweep."): value for key, value in given.items()}
        rows = []
        for environment, algorithm, seed, sparsity in itertools.product(
            own["environment"], own["algorithms"], own["seeds"], own["sparsities"]
        ):
            for pruner in own["pruners"] if sparsity else ["dense"]:
                normalized = given.get(f"algorithms.{algorithm}.normalize_states", False)
                scored = given.get("pruning.normalize_states", normalized)
                row = {"environment": environment, "algorithm": algorithm, "pruner": pruner}
                row |= {"sparsity": sparsity, "seed": str(seed)}
                row["data_seed"] = str(given.get("data.seed", seed))
                row |= {"normalize_states": str(normalized), "pruning_normalize_states": str(scored)}
                row["actor"] = given.get(f"algorithms.{algorithm}.actor", "vae" if algorithm == "bc" else "")
                for column, setting in SETTINGS.items():
                    value = given.get(setting.key.format(algorithm), usual(column, algorithm, pruner))
                    text = "-".join(map(str, value)) if isinstance(value, list) else str(value)
                    row[column] = "" if value is None else text
                rows.append(row)
        yield name, described(pandas.DataFrame(rows))


def scores_of(agents: pandas.DataFrame, across: Sequence[str]) -> dict[Key, pandas.Series]:
    """The agents' scores by case, mask and seed, for each value of the columns `across`."""
    index = [column for column in (*CASE, *MASK, "seed") if column not in across]
    return {key: own.set_index(index)["score"] for key, own in agents.groupby(list(across))}


def table(agents: pandas.DataFrame, across: Sequence[str], columns: Mapping[str, Key]) -> str:
    """Scores in the first column; in the others, how many points more than in the first."""
    scores = scores_of(agents, across)
    (first, reference), *others = columns.items()
    others = [(head, key) for head, key in others if key in scores]
    if reference not in scores or not others:
        return markdown([first], [])
    case = scores[reference].index.names[:-1]
    more = [(scores[key] - scores[reference]).dropna().groupby(case) for _, key in others]
    found = [{at: estimate(values).cell for at, values in groups} for groups in more]
    rows = []
    for at, own in scores[reference].groupby(case):
        if any(at in cells for cells in found):
            named = dict(zip(case, at, strict=True))
            cells = (own_cells.get(at, "") for own_cells in found)
            rows.append((label(named), named["data"], score(estimate(own)), *cells))
    return markdown(["agents", "data sets", first, *(head for head, _ in others)], sorted(rows))


class Study:
    """The tables in a directory, and what is computed from them."""

    def __init__(self, directory: Path, evaluations: int = EVALUATIONS) -> None:
        """An agent's score is the mean of its last `evaluations` evaluations."""

        def read(name: str) -> pandas.DataFrame:
            return pandas.read_csv(directory / name, dtype=str, keep_default_na=False)

        scores, self.runs = read("scores.csv"), read("runs.csv")
        agent = list(scores.columns[: list(scores.columns).index("seed") + 1])
        numbers = {name: scores[name].astype(float) for name in ("update", "d4rl_score")}
        ordered = scores.assign(**numbers).sort_values("update", kind="stable")
        last = ordered.groupby(agent).tail(evaluations).groupby(agent)["d4rl_score"]
        self.agents = described(last.agg(score="mean", spread="std").reset_index())
        self.by_mask = scores_of(self.agents, MASK)
        layers = described(read("layers.csv")).query("pruner != 'small'")  # counts of wide networks
        counts = ["weights_total", "weights_kept", "weights_on_paths", "states_total", "states_kept"]
        self.layers = layers.assign(**{name: pandas.to_numeric(layers[name]) for name in counts})
        experts = (json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "experts").glob("*.json")))
        self.experts = {each["environment"]: each for each in experts}

    def difference(self, own: Key, other: Key, **case: str) -> pandas.Series:
        """Points, by case and seed, that one mask scores more; `case` says in what cases are unusual."""
        if own not in self.by_mask or other not in self.by_mask:
            return pandas.Series(dtype=float, index=pandas.MultiIndex.from_tuples([], names=[*CASE, "seed"]))
        found = (self.by_mask[own] - self.by_mask[other]).dropna()
        for column, value in {"data": "own", "training": "", "states": "normalised", **case}.items():
            found = found[found.index.get_level_values(column) == value]
        return found

    def tests(
        self, own: Key, other: Key, kinds: Sequence[str] = (), seeds: Sequence[int] = (), **case: str
    ) -> tuple[list[Estimate], int]:
        """Tests of the mean difference over cases with enough seeds, and the number of these cases.

        One is of the means of seeds, which holds if cases vary together but is too sure where they cancel by
        chance, the other of independent cases (Welch 1947). Without `seeds`, all count.
        """
        by_seed = self.difference(own, other, **case).unstack("seed")
        if kinds:
            by_seed = by_seed[by_seed.index.get_level_values("kind").isin(kinds)]
        if seeds:
            by_seed = by_seed[[seed for seed in by_seed if int(seed) in seeds]]
        by_seed = by_seed[by_seed.notna().sum(axis=1) >= MIN_SEEDS].dropna(axis=1)
        cases, found = len(by_seed), estimate(by_seed.mean() if len(by_seed) else ())
        if found.seeds < MIN_SEEDS:
            return [found], cases
        squares = by_seed.var(axis=1) / found.seeds / cases**2
        freedom = (found.seeds - 1) * squares.sum() ** 2 / (squares**2).sum()
        return [found, by_t(found.value, squares.sum() ** 0.5, freedom, found.seeds)], cases

    def pooled(
        self, own: Key, other: Key, kinds: Sequence[str] = (), *, margin: float = 0.0, **which: Any
    ) -> tuple[Estimate, int]:
        """The wider interval and the larger p-value of :meth:`tests`, and the number of cases.

        With a `margin`, p is of the equivalence test.
        """
        found, cases = self.tests(own, other, kinds, **which)
        wider = max(found, key=lambda each: each.high - each.low)
        p = max(each.p_within(margin) if margin else each.p for each in found)
        return wider._replace(p=p), cases

    def listed(self, own: Key, other: Key, kinds: Sequence[str] = (), **case: str) -> str:
        """The mean difference in each environment, by name."""
        found = {each: self.pooled(own, other, kinds, environment=each, **case) for each in self.experts}
        return ", ".join(f"{each} {mean if cases else NOT_TRIED}" for each, (mean, cases) in found.items())

    def places(
        self, own: Key, other: Key, kinds: Sequence[str] = (), seeds: Sequence[int] = (), **case: str
    ) -> str:
        """The mean difference in each environment: the cells of a table's row."""
        of = {"seeds": seeds, **case}
        found = (self.pooled(own, other, kinds, environment=each, **of) for each in self.experts)
        return " | ".join(mean.cell if cases else NOT_TRIED for mean, cases in found)

    def shapes(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        """Inputs, hidden units and outputs of the MLP that acts alone, by environment and kind of agent."""
        acting = self.layers[self.layers["part"].isin(["actor", "decoder"]) & (self.layers["kind"] != "BCQ")]
        found = {}
        for at, own in acting.groupby(["environment", "kind"]):
            first, middle, last = own.drop_duplicates("layer").sort_values("layer")["weights_total"]
            width = round(middle**0.5)
            found[at] = int(first / width), width, int(last / width)
        return found

    def points(self) -> pandas.DataFrame:
        """Each point of figure A: weights of what acts, kept and on a path, and the estimate of the score."""
        acting = self.layers[self.layers["part"].isin(["actor", "decoder"]) & (self.layers["training"] == "")]
        key = ["environment", "kind", "states", "data", *MASK]
        of_agents = acting.groupby([*key, "seed"])[["weights_kept", "weights_on_paths"]].sum(min_count=1)
        counts = of_agents.groupby(key).mean()
        shapes = self.shapes()
        shown = self.agents[self.agents["pruner"].isin(LOOK) & (self.agents["training"] == "")]
        shown = shown[(shown["states"] == "normalised") & (shown["data"] == "own") & (shown["masks"] == "")]
        rows = []
        for at, own in shown.groupby(key):
            environment, kind, *_, pruner, sparsity, _ = at
            if (environment, kind) in shapes:
                dense = narrow(*shapes[environment, kind], 1 - sparsity)
                pruned = counts.reindex([at]).iloc[0]  # an agent's masks may have been lost
                weights = (dense, dense) if pruner in ("dense", "small") else pruned
                rows.append((kind, environment, pruner, sparsity, *weights, *estimate(own["score"])))
        columns = ["kind", "environment", "pruner", "sparsity", "weights", "on_paths", *Estimate._fields]
        return pandas.DataFrame(rows, columns=columns).dropna(subset="weights").sort_values("on_paths")


def label(case: Mapping[str, Any]) -> str:
    """A row's agents in words."""
    words = (case.get(of, "") for of in ("environment", "kind", "states", "training", "pruner", "masks"))
    return ", ".join(NAMES.get(each, each) for each in words if each)


def draw_weights(study: Study, path: Path, environments: Iterable[str]) -> None:
    """Figure A: score against the weights on a path, for kinds of agents that have more than one sparsity."""
    of_kinds = study.points().groupby(["kind", "environment"])
    panels = [
        (at, own) for at, own in of_kinds if at[1] in environments and len(set(own["sparsity"]) - {0.0}) > 1
    ]
    rows = -(-len(panels) // 3)
    figure = Figure(figsize=(9, 2.7 * rows + 0.4), layout="constrained")
    axes = list(figure.subplots(rows, 3, sharex=True, sharey=True, squeeze=False).flat)
    for axis, ((kind, environment), own) in zip(axes, panels, strict=False):
        for line, played, words in (("-", "deterministic", "expert"), (":", "noisy", "expert with noise")):
            expert = study.experts[environment][played]["d4rl_score"]
            axis.axhline(expert, color="#7b8794", linewidth=0.8, linestyle=line, label=words)
        for pruner, of_pruner in own.groupby("pruner"):
            draw(axis, of_pruner["on_paths"], of_pruner, *LOOK[pruner], NAMES[pruner])
        axis.set(
            title=f"{environment}\n{TITLES.get(kind, kind)}", xscale="log", xlim=(1e2, 1e6), ylim=(-5, 105)
        )
        axis.set(xlabel="weights on a path", ylabel="D4RL score")
        axis.tick_params(labelbottom=True, labelleft=True)
    for axis in axes[len(panels) :]:
        axis.remove()
    save(figure, path)


def draw_masks(study: Study, path: Path) -> None:
    """Figure B: scores by the states that masks were scored on, and that agents trained on."""
    own = study.agents[(study.agents["kind"] == "BC (VAE)") & (study.agents["pruner"] == "snip")]
    own = own[(own["data"] == "own") & (own["training"] == "") & (own["sparsity"] == 0.95)]
    figure = Figure(figsize=(6.4, 2.9), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, environment in zip(axes, ("HalfCheetah", "Hopper"), strict=True):
        for words, colour, shift in ((ON_RAW, "#d55e00", -0.1), (ON_NORMALISED, "#0072b2", 0.1)):
            masks = own["masks"].where(own["masks"] != "", "scored on " + own["states"] + " states")
            shown = own[(own["environment"] == environment) & (masks == words)]
            for at, trained in enumerate(STATES.values()):
                values = shown.loc[shown["states"] == trained, "score"]
                axis.scatter([at + shift + 0.06] * len(values), values, 16, color=colour, alpha=0.3)
                found = pandas.DataFrame([estimate(values)])
                draw(axis, [at + shift], found, colour, "_", f"masks {words}")
        axis.set(title=environment, xlim=(-0.5, 1.5), ylim=(-5, 105), ylabel="D4RL score")
        axis.set_xticks([0, 1], [f"trained on\n{states} states" for states in STATES.values()])
    save(figure, path)


def draw(
    axis: Axes, at: Sequence[float], found: pandas.DataFrame, colour: str, marker: str, words: str
) -> None:
    """Draw estimates with their intervals, joined by a line and a band."""
    axis.plot(at, found["value"], marker=marker, color=colour, label=words, markersize=6)
    axis.vlines(at, found["low"], found["high"], color=colour, linewidth=1)
    axis.fill_between(at, found["low"], found["high"], color=colour, alpha=0.15, linewidth=0)


def save(figure: Figure, path: Path) -> None:
    """Write an SVG file with one legend below. Equal drawings give equal bytes."""
    drawn = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in figure.axes]
    handles = {words: handle for own in drawn for handle, words in own}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, metadata={"Date": None, "Creator": None})


SNIP, SNIP_2, SNIP_1 = (("snip", sparsity, "") for sparsity in (0.95, 0.98, 0.99))
SMALL, SMALL_2, SMALL_1 = (("small", sparsity, "") for sparsity in (0.95, 0.98, 0.99))
GRASP = ("grasp", 0.95, "")
SHUFFLED, RANDOM, DENSE = ("snip-shuffled", 0.95, ""), ("random", 0.95, ""), ("dense", 0.0, "")
OTHER_STATES = ("snip", 0.95, ON_NORMALISED)
GRADUAL, GRADUAL_1 = (("gradual", sparsity, "") for sparsity in (0.95, 0.99))
RIGL, RIGL_1 = (("rigl", sparsity, "") for sparsity in (0.95, 0.99))


class Claim(NamedTuple):
    """A sentence and its test, as docs/study/methods.md has written it down."""

    sentence: str
    compared: str
    own: Key
    other: Key
    kinds: Sequence[str]
    seeds: Sequence[int] = ()
    states: str = "normalised"
    margin: float = 0.0
    """Points within which the difference is claimed to be; 0: it is claimed not to be zero."""


CLAIMS = (
    Claim("Of 71,000 weights, a narrow dense network scores more than a wide one that SNIP prunes",
          "narrow dense − SNIP, BC (MLP) and TD3+BC of 256 units, seeds 3 to 9",
          SMALL, SNIP, OF_71_000, range(3, 10)),
    Claim("Of 580,000 weights, too", "narrow dense − SNIP, BC and TD3+BC of 750 units",
          SMALL, SNIP, OF_580_000),
    Claim("SNIP costs points", "SNIP − dense, the kinds of figure A", SNIP, DENSE, FIGURE_A),
    Claim("On raw states it is the mask that fails: with one of normalised states, agents score more",
          "masks of normalised − of raw states, BC (VAE), trained on raw states",
          OTHER_STATES, SNIP, PAPER[:1], states="raw"),
    Claim("Which weights of a layer SNIP keeps makes less than 3 points in the mean",
          "SNIP − SNIP shuffled, BC (VAE), BCQ", SNIP, SHUFFLED, PAPER, margin=3.0),
    Claim("SNIP's number of weights in each layer matters: an equal share of each scores less",
          "SNIP shuffled − random, BC (VAE), BCQ", SHUFFLED, RANDOM, PAPER),
    Claim("Pruning gradually while training scores differently from a narrow dense network",
          "gradual − narrow dense, BC (MLP) and TD3+BC of 256 units", GRADUAL, SMALL, OF_71_000, range(5)),
)  # fmt: skip


def claims(study: Study) -> pandas.DataFrame:
    """The claims, each with one pooled test, and Holm's correction over all of them."""
    rows = []
    for claim in CLAIMS:
        which = {"seeds": claim.seeds, "states": claim.states}
        found, cases = study.pooled(claim.own, claim.other, claim.kinds, margin=claim.margin, **which)
        rows.append({"claim": claim.sentence, "compared": claim.compared, **found._asdict(), "cases": cases})
    return pandas.DataFrame(rows).assign(p_holm=holm([row["p"] for row in rows]))


def tested_estimate(row: Any) -> Estimate:
    """The difference that a row of :func:`claims` has."""
    return Estimate(row.value, row.low, row.high, row.p, row.seeds)


def claim_table(found: pandas.DataFrame, columns: Sequence[str] = ("claim", "compared")) -> str:
    """The claims, as README.md has them."""
    rows = []
    for row in found.itertuples():
        written = tested_estimate(row).cell if row.cases else NOT_TRAINED
        p = ("–", "–") if np.isnan(row.p) else (f"{row.p:.2g}", f"{row.p_holm:.2g}")
        named = (getattr(row, column) for column in columns)
        rows.append((*named, written, *p, f"{row.seeds} in {row.cases}"))
    head = [*columns, "points", "p", "p, Holm", "seeds, cases"]
    return markdown(head, rows)


def last_layers(study: Study) -> tuple[int, int]:
    """In how many cases SNIP keeps more of an MLP's last layer than GraSP, and of how many cases."""
    layers = study.layers[(study.layers["sparsity"] == 0.95) & (study.layers["masks"] == "")]
    last = layers.groupby([*CASE, "pruner", "seed", "part"]).tail(1)
    share = (last["weights_kept"] / last["weights_total"]).groupby(
        [last[each] for each in (*CASE, "part", "pruner")]
    )
    means = share.mean().unstack("pruner")[["snip", "grasp"]].dropna()
    return int((means["snip"] > means["grasp"]).sum()), len(means)


def parts(study: Study) -> dict[str, str]:
    """Every part of the pages that this script fills, by name."""
    agents = study.agents
    five = agents[agents["sparsity"].isin([0, 0.95]) & (agents["masks"] == "")]
    normalised = agents[agents["states"] == "normalised"]
    failed = normalised[normalised["training"].isin([AS_THEY_COME, A_TENTH])]
    failing = normalised.merge(failed[["environment", "kind"]].drop_duplicates())
    unmasked = agents[agents["pruner"].isin(["dense", "small"])]
    masks = sorted(agents["masks"].unique(), key=lambda text: (len(text), text))

    def pruned(*pruners: str, sparsity: float = 0.95) -> dict[str, Key]:
        return {NAMES.get(each, each): DENSE if each == "dense" else (each, sparsity, "") for each in pruners}

    def mean(own: Key, other: Key, kinds: Sequence[str] = (), **case: str) -> str:
        return str(study.pooled(own, other, kinds, **case)[0])

    def loss(own: Key, kinds: Sequence[str]) -> str:
        return lost(study.pooled(own, DENSE, kinds, environment="HalfCheetah")[0])

    def curve(pruner: str, kind: str) -> str:
        """Points above dense, of a part of the paper's curve."""
        found = [(each, study.listed((pruner, each, ""), DENSE, (kind,))) for each in (0.75, 0.9)]
        return "; ".join(f"{100 * sparsity:.0f} %: {places}" for sparsity, places in found)

    def with_masks(words: str) -> str:
        return table(agents, ["masks"], {"usual": ("",)} | {each: (each,) for each in masks if words in each})

    more = ("10 rounds", "100 rounds", "1,000 transitions", "10,000 transitions")
    plan = progress(study)
    every, trained = plan.pop("all")
    spread, runs = agents["spread"], study.runs
    experts = (f"{name} {each['deterministic']['d4rl_score']:.0f}" for name, each in study.experts.items())
    longer = ("50,000 updates", "100,000 updates")
    by_length = {"25,000 updates": ("",)} | {words: (words,) for words in longer}
    by_failures = {"none": ("",), "as they come": (AS_THEY_COME,), "a tenth": (A_TENTH,)}
    by_sparsity = {f"{1 - sparsity:.0%} kept": (sparsity,) for sparsity in (0.95, 0.75, 0.9, 0.98, 0.99)}
    by_states = {"scored on the same states": ("",), ON_NORMALISED: (ON_NORMALISED,), ON_RAW: (ON_RAW,)}
    shuffled = ("snip-shuffled-first", "snip-shuffled-rest", "snip-shuffled")
    compared = ("dense", "snip", "snip-shuffled", "grasp", "grasp-shuffled", "random")
    mlp = OF_71_000[0]
    tuned = {
        "as elsewhere": (mlp,),
        "learning rate 0.003": (f"{mlp}, learning rate 0.003",),
        "Glorot's initial weights": (f"{mlp}, initial weights by glorot",),
    }
    layerwise = pruned("snip", *shuffled, "snip-blind", "dense")
    tested = claims(study)
    new_seeds, *_, gradual = map(tested_estimate, tested.itertuples())
    return {
        "claims": claim_table(tested),
        "claims-final": claim_table(claims(Study(HERE, evaluations=1)), ["compared"]),
        "new": str(new_seeds),
        "new-p": probability(new_seeds.p),
        "gradual": str(gradual),
        "gradual-p": probability(gradual.p),
        "gradual-td3bc": mean(GRADUAL, SMALL, OF_71_000[1:]),
        "gradual-bc": mean(GRADUAL, SMALL, OF_71_000[:1]),
        "last-layers": "{} of {}".format(*last_layers(study)),
        "paper-bc": study.listed(SNIP, DENSE, ("BC (VAE)",)),
        "paper-bc-grasp": study.listed(GRASP, DENSE, ("BC (VAE)",)),
        "paper-bc-raw": study.listed(SNIP, DENSE, ("BC (VAE)",), states="raw"),
        "paper-bcq": study.listed(SNIP, DENSE, ("BCQ",)),
        "paper-bcq-grasp": study.listed(GRASP, DENSE, ("BCQ",)),
        "paper-bc-raw-grasp": study.listed(GRASP, DENSE, ("BC (VAE)",), states="raw"),
        "paper-bcq-raw": study.listed(SNIP, DENSE, ("BCQ",), states="raw", data="one"),
        "paper-curve-bc": curve("snip", "BC (VAE)"),
        "paper-curve-bc-grasp": curve("grasp", "BC (VAE)"),
        "paper-curve-bcq": curve("snip", "BCQ"),
        "paper-curve-bcq-grasp": curve("grasp", "BCQ"),
        "paper-more": ", ".join(f"{words} {mean(('snip', 0.95, words), SNIP, PAPER[:1])}" for words in more),
        "td3bc-large": mean(SNIP, DENSE, OF_580_000[2:]),
        "td3bc-small": mean(SNIP, DENSE, OF_71_000[1:]),
        "shuffled-raw": mean(SNIP, SHUFFLED, PAPER[:1], states="raw"),
        "narrow-snip-places": study.places(SMALL, SNIP, FIGURE_A),
        "narrow-snip-2-places": study.places(SMALL_2, SNIP_2, FIGURE_A),
        "narrow-snip-1-places": study.places(SMALL_1, SNIP_1, FIGURE_A),
        "new-places": study.places(SMALL, SNIP, OF_71_000, range(3, 10)),
        "gradual-narrow-places": study.places(GRADUAL, SMALL, OF_71_000),
        "gradual-narrow-1-places": study.places(GRADUAL_1, SMALL_1, OF_71_000),
        "rigl-narrow-places": study.places(RIGL, SMALL, OF_71_000),
        "rigl-narrow-1-places": study.places(RIGL_1, SMALL_1, OF_71_000),
        "lost-snip-large": lost(study.pooled(SNIP, DENSE, OF_580_000)[0]),
        "lost-snip-small": loss(SNIP, OF_71_000),
        "lost-narrow-small": loss(SMALL, OF_71_000),
        "lost-snip-1": loss(SNIP_1, OF_580_000[:2]),
        "lost-narrow-1": loss(SMALL_1, OF_580_000[:2]),
        "lost-snip-bcq": loss(SNIP, ("BCQ",)),
        "lost-snip-iql": loss(SNIP, ("IQL, 750-750 units",)),
        "gradual-small": study.places(GRADUAL, DENSE, OF_71_000),
        "gradual-iql": mean(GRADUAL, DENSE, ("IQL",)),
        "gradual-snip": mean(GRADUAL, SNIP, ("BC (VAE)",)),
        "gradual-snip-bcq": mean(GRADUAL, SNIP, ("BCQ",)),
        "snip-small": study.places(SNIP, DENSE, OF_71_000),
        "snip-large": study.places(SNIP, DENSE, OF_580_000),
        "narrow-small": study.places(SMALL, DENSE, OF_71_000),
        "narrow-large": study.places(SMALL, DENSE, OF_580_000),
        "longer": mean(SNIP, DENSE, ("TD3+BC", "IQL"), training=longer[1]),
        "longest": mean(SNIP, DENSE, OF_71_000[:1], training="1,000,000 updates"),
        "longest-narrow": mean(SMALL, DENSE, OF_71_000[:1], training="1,000,000 updates"),
        "iql": " and ".join(mean(own, DENSE, ("IQL, 750-750 units",)) for own in (SMALL, SNIP)),
        "shuffled-bcq": study.places(SNIP, SHUFFLED, ("BCQ",)),
        "snip-as-drawn": mean(SNIP, DENSE, ("BC (VAE)",), training=AS_THEY_COME),
        "snip-as-drawn-bcq": mean(SNIP, DENSE, ("BCQ",), training=AS_THEY_COME),
        "narrow-as-drawn": mean(SMALL, DENSE, PAPER, training=AS_THEY_COME),
        "scored-raw": study.places(OTHER_STATES, DENSE, states="raw"),
        "experts": ", ".join(experts),
        "agents": f"{len(runs):,}",
        "hours": f"{runs['seconds'].astype(float).sum() / 3600:.0f}",
        "processors": ", ".join(sorted(runs["processor"].unique())),
        "commits": ", ".join(sorted({commit[:7] for commit in runs["commit"]})),
        "spread": f"{spread.median():.1f} points in the median and {spread.max():.0f} at most",
        "planned": f"{every:,}",
        "trained": f"{trained:,}",
        "plan": markdown(
            ["experiment", "agents", "trained"], [(f"`{name}`", *map(str, own)) for name, own in plan.items()]
        ),
        "scores": table(five, MASK, pruned(*compared)),
        "weights": weight_table(study),
        "narrow": narrow_table(study),
        "sparsities": table(agents[agents["pruner"] != "dense"], ["sparsity"], by_sparsity),
        "scored": table(agents[agents["pruner"] == "snip"], ["masks"], by_states),
        "layers": table(five[~five["training"].str.endswith(" updates")], MASK, layerwise),
        "blind": blind_table(study),
        "ways": table(five, MASK, pruned("snip", "small", "erk", "set", "rigl", "gradual", "finetuned")),
        "ways-2": table(agents, MASK, pruned("small", "snip", "rigl", "gradual", sparsity=0.98)),
        "ways-1": table(agents, MASK, pruned("small", "snip", "rigl", "gradual", sparsity=0.99)),
        "tuned": table(five[five["pruner"] == "snip"], ["kind"], tuned),
        "raw": table(unmasked, ["states"], {words: (words,) for words in ("normalised", "raw")}),
        "length": table(agents, ["training"], by_length),
        "failures": table(failing, ["training"], by_failures),
        "failed": table(failed, MASK, pruned("dense", "snip", "small")),
        "scope": with_masks("scope"),
        "transitions": with_masks("transitions"),
        "rounds": with_masks("rounds"),
    }


def weight_table(study: Study) -> str:
    """The points of figure A."""
    order = ["environment", "kind", "weights", "pruner"]
    rows = []
    for row in study.points().sort_values(order, ascending=[True, True, False, True]).itertuples():
        on_paths = "–" if np.isnan(row.on_paths) else f"{row.on_paths:,.0f}"
        kept = f"{100 * (1 - row.sparsity):.3g} %", f"{row.weights:,.0f}", on_paths
        rows.append((f"{row.environment}, {row.kind}", NAMES[row.pruner], *kept, score(row), f"{row.seeds}"))
    head = ["agents", "masks", "weights kept", "number", "on a path", "score", "seeds"]
    return markdown(head, rows)


def narrow_table(study: Study) -> str:
    """Narrow dense networks beside wide ones that SNIP prunes to as many weights."""
    rows = []
    for sparsity in sorted(set(study.agents["sparsity"]) - {0.0}):
        found = study.difference(("small", sparsity, ""), ("snip", sparsity, ""))
        for case, own in found.groupby(CASE):
            named = label(dict(zip(CASE, case, strict=True)))
            rows.append((named, f"{1 - sparsity:.0%}", estimate(own).cell))
    rows.sort(key=lambda row: row[0])  # and as the loop, from many weights to few
    return markdown(["agents", "weights kept", "narrow dense − SNIP"], rows)


def blind_table(study: Study) -> str:
    """Number of state coordinates that MLPs do not read, at 95 % sparsity, where it is 0.5 or more."""
    layers = study.layers[(study.layers["sparsity"] == 0.95) & (study.layers["masks"] == "")]
    layers = layers[layers["states_total"] > 0].assign(blind=layers["states_total"] - layers["states_kept"])
    layers = layers.drop_duplicates([*CASE, *MASK, "part", "seed"])
    rows, shown = [], ("snip", "snip-shuffled", "grasp", "random")
    for at, own in layers.groupby(["environment", "kind", "states"]):
        means = own.groupby("pruner")["blind"].mean().reindex(shown)
        if means.max() < 0.5:
            continue
        cells = ["" if np.isnan(mean) else f"{mean:.1f}" for mean in means]
        rows.append((", ".join(at), f"{own['states_total'].iloc[0]:.0f}", *cells))
    return markdown(["agents", "coordinates", *(NAMES.get(each, each) for each in shown)], rows)


def progress(study: Study) -> dict[str, tuple[int, int]]:
    """The numbers of agents of each planned experiment, and of `all` together, planned and trained."""
    key = [*CASE, *MASK, "seed"]
    trained = set(study.agents[key].itertuples(index=False, name=None))
    plan = {name: set(own[key].itertuples(index=False, name=None)) for name, own in planned()}
    plan["all"] = set.union(*plan.values())
    return {name: (len(own), len(own & trained)) for name, own in plan.items()}


def fill(text: str, values: Mapping[str, str]) -> str:
    """A page with its parts filled; a table stands on lines of its own."""

    def filled(found: re.Match[str]) -> str:
        value = values[found[2]]
        return f"{found[1]}\n\n{value}\n\n{found[3]}" if "\n" in found[0] else f"{found[1]}{value}{found[3]}"

    return re.sub(r"(<!-- ([a-z0-9-]+) -->).*?(<!-- end -->)", filled, text, flags=re.DOTALL)


def main() -> None:
    """Fill the pages, from the tables beside them."""
    study = Study(HERE)
    claims(study).to_csv(HERE / "claims.csv", index=False, float_format="%.6g")
    values = parts(study)
    for path in [*HERE.glob("*.md"), ROOT / "README.md"]:
        path.write_text(fill(path.read_text("utf-8"), values), encoding="utf-8")
    with rc_context(RC):
        draw_weights(study, HERE / "weights.svg", study.experts)
        draw_weights(study, HERE / "finding.svg", ["HalfCheetah"])
        draw_masks(study, HERE / "masks.svg")
    print(HERE / "README.md")


if __name__ == "__main__":
    main()
