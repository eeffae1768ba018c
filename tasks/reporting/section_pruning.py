"""Pruning before training: the page's answers on return and bytes, and Arnob et al.'s figures and table."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from textwrap import fill

import numpy as np
import pandas
from matplotlib.axes import Axes

from singleshot.pruning.variant import percentage
from tasks.reporting import paper, results
from tasks.reporting.blocks import (
    NOT_GIVEN,
    Block,
    Caution,
    Figure,
    Key,
    NotRun,
    Panel,
    Section,
    Table,
    Text,
    count,
    exact_percent,
    listing,
    number,
    percent,
)
from tasks.reporting.look import (
    CHART_INCHES,
    DENSE,
    FORMATS,
    INK,
    MUTED,
    OTHER,
    PRUNERS,
    animation,
    by_pruner,
    chart,
    name,
    ordered,
    pruner_keys,
    shared,
)
from tasks.reporting.results import Results

ALL = "all"
STATES = ("raw", "normalised")
RETENTION, SCOPE = "share of the dense agents' score", ", scope part"
"""How the study's claims about retention begin, and how the names of masks that are made part by part end."""
SEVERAL = 3
"""Least number of sparsities, 0 among them, for a chart by sparsity; a table has fewer."""
FEW_SEEDS = 3
"""Least number of seeds for intervals: two seeds have only three different resamples."""
MANY_SEEDS = 5
"""From this number of seeds on, intervals contain the true value nearly as often as they say (see
`statistics.bootstrap_interval`)."""
PRUNER_FIGURES = {"snip": "Figure 1", "grasp": "Figure 2"}
PACKED_ROWS = (
    paper.NetworkSizes("GraSP (95% sparse), packed", "grasp", "packed_raw"),
    paper.NetworkSizes("SNIP (95% sparse), packed", "snip", "packed_raw"),
    paper.NetworkSizes("GraSP (95% sparse), packed, exponents coded", "grasp", "packed_exponents"),
    paper.NetworkSizes("SNIP (95% sparse), packed, exponents coded", "snip", "packed_exponents"),
)
"""Further rows of Table 1, for formats that the paper does not have."""
TABLE_1_SPARSITY = 0.95
FORMAT_NAMES = {
    DENSE: "dense tensors",
    "coo": "COO, the paper's torch.to_sparse()",
    "csr_int32": "CSR, 32-bit indices",
    "bitmap": "bitmap and values",
    "packed_raw": "packed files",
    "packed_exponents": "packed files with coded exponents",
    "entropy bound": "entropy bound",
}
VALUES = {"raw": "float32", "exponents": "coded float32", "fp16": "float16", "int8": "int8"}


def did_pruning_keep_the_return(found: Results, normalized: bool) -> Section:
    """Section `return`; `normalized` says whether the agents' states are normalised."""
    title = "Did pruning keep the return?"
    statistics = found.table(results.STATISTICS)
    if highest(statistics).empty:
        missing = results.not_run("Return of pruned agents beside dense ones", results.STATISTICS)
        return Section(
            "return", title, "Not known: no pruned agent's return was compared with a dense one's.", [missing]
        )
    top = highest(statistics)
    if top["environment"].nunique() <= 2:  # of one environment, `all` says the same
        top = top[top["environment"] != ALL]
    retained = Figure(
        f"Share of the dense agents' D4RL score that {_highest(top)} sparse agents keep; bars "
        f"are {exact_percent(found.confidence)} bootstrap intervals, where there are three "
        "seeds or more",
        _charts(
            draw_retention,
            top,
            ["algorithm"],
            "Retained score of {} by environment and pruner; the table is in the details.",
            "x",
            lambda rows: 1.2 + 0.42 * rows["environment"].nunique(),
        ),
        pruner_keys(top["pruner"]),
        data=results.STATISTICS.path,
    )
    cautions = [Caution(text) for text in (_few_seeds(statistics), _few_updates(found)) if text]
    details = [_statistics_table(statistics, found.confidence), *_profiles(found)]
    blocks = [*cautions, retained, _kept(found, top), *_motion(found), _density_by_part(found)]
    return Section("return", title, _answer(found, top, normalized), blocks, details)


def highest(rows: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of the highest sparsity; none if nothing was pruned."""
    pruned = rows[rows["sparsity"] > 0]
    return pruned[pruned["sparsity"] == pruned["sparsity"].max()]


def agents_in_motion(found: Results) -> list[Panel]:
    """A video of each environment and algorithm: agents side by side, the paper's BCQ first."""
    videos = [(*video.split("/")[3:5], video) for video in found.find(f"{results.ANIMATIONS}animation.mp4")]
    return [
        animation(
            found.files[video],
            found.files[video.replace("animation.mp4", "still.jpg")],
            f"{name(algorithm)} agents on {environment} in motion, dense beside pruned ones.",
            f"{name(algorithm)}, {environment}",
        )
        for environment, algorithm, video in sorted(videos, key=lambda each: each[1] != "bcq")
    ]


def _motion(found: Results) -> Iterator[Block]:
    panels = agents_in_motion(found)
    if not panels:
        stage = "measure_agents"
        how = f"The stage {stage} writes results/offline_rl/animations/; to get it, run dvc repro {stage}"
        yield NotRun("Agents in motion", how)
    elif others := panels[1:]:
        yield Figure(
            f"Agents in motion, like those of {panels[0].title} at the top of the page. They have the first "
            "seed, and the episode is one of median return after the last update, or its first 20 seconds",
            others,
            data=results.SCORES.path,
            panel="wide",
        )


def _density_by_part(found: Results) -> Block:
    """A table of the weights that each part keeps: retention says little if the policy keeps more of them."""
    layers = found.table(results.LAYERS)
    what = "Percentage of its weights that each part of an agent keeps"
    if layers.empty:
        return results.not_run(what, results.LAYERS)
    top = highest(layers)
    agents = ["environment", "algorithm", "pruner"]
    counts = top.groupby([*agents, "part"], sort=False)[["weights_kept", "weights_total"]].sum()
    kept = (100 * counts["weights_kept"] / counts["weights_total"]).unstack("part")
    rows = [
        (str(environment), name(str(algorithm)), name(str(pruner)), *(number(value) for value in row))
        for (environment, algorithm, pruner), row in kept.iterrows()
    ]
    caption = (
        f"{what}, with {_highest(top)} of all weights pruned. BC acts with the decoder alone, BCQ with "
        "decoder, actor and critics"
    )
    return Table(
        caption,
        ("environment", "algorithm", "pruner", *kept.columns),
        rows,
        numbers=tuple(kept.columns),
        data=results.LAYERS.path,
    )


def _answer(found: Results, top: pandas.DataFrame, normalized: bool) -> str:
    """What the best pruner keeps for each algorithm, and what the study says about the same pruners."""
    overall = top[top["environment"] == ALL] if ALL in set(top["environment"]) else top
    best = overall.dropna(subset="retention").sort_values("retention").groupby("algorithm").tail(1)
    if best.empty:
        return "Not known: a share of the score of dense agents that score nothing says nothing."
    kept = [
        f"{name(row.algorithm)} agents {percent(row.retention)} with {name(row.pruner)}"
        for row in best.sort_values("algorithm").itertuples()
    ]
    sentence = (
        f"With {_highest(top)} of the weights pruned before training, the best pruner keeps this share of "
        f"the dense agents' score: {listing(kept)}."
    )
    study = _in_study(found, top)
    ranges = [f"{_span(study[each].dropna())} on {each} states" for each in STATES if study[each].any()]
    if not ranges:
        return sentence
    return (
        f"{sentence} How much is kept, and by which pruner, depends on the states: in the study of this "
        "repository, whose agents have the paper's hyper-parameters, the same pruners keep "
        f"{listing(ranges)}. The agents of this run have {STATES[normalized]} states."
    )


def _span(values: pandas.Series) -> str:
    low, high = percent(values.min()), percent(values.max())
    return low if low == high else f"{low.split()[0]} to {high}"


def _in_study(found: Results, top: pandas.DataFrame) -> pandas.DataFrame:
    """The shares that the study's agents keep on each kind of states, by environment, algorithm and pruner.

    Rows are those that `top` has, too, with names as readers know them.
    """
    claims = found.table(results.STUDY)
    claims = claims[claims["measured"].str.startswith(RETENTION) & claims["masks"].str.endswith(SCOPE)]
    agents = claims["agents"].str.split(", ", expand=True).reindex(columns=[0, 1])
    study = claims.assign(
        environment=agents[0],
        algorithm=agents[1],
        states=claims["normalize_states"].map(lambda given: STATES[bool(given)]),
        pruner=claims["masks"].str.removesuffix(SCOPE),
    ).pivot_table("value", ["environment", "algorithm", "pruner"], "states")
    keys = {(row.environment, name(row.algorithm), name(row.pruner)) for row in top.itertuples()}
    return study.reindex(columns=STATES)[study.index.isin(keys)]


def _kept(found: Results, top: pandas.DataFrame) -> Table:
    """The shares that are kept, with their intervals, beside the study's."""
    study = _in_study(found, top)
    rows = []
    for row in top.sort_values(["algorithm", "environment"], kind="stable").itertuples():
        key = (row.environment, name(row.algorithm), name(row.pruner))
        beside = [percent(value) for value in study.loc[key]] if key in study.index else [NOT_GIVEN] * 2
        bounds = (row.retention_low, row.retention_high)
        interval = " to ".join(map(percent, bounds)) if np.isfinite(bounds).all() else NOT_GIVEN
        rows.append(
            (
                *key[1:],
                _environment(row.environment),
                percent(row.retention),
                interval,
                _verdict(*bounds),
                *beside,
            )
        )
    numbers = ("kept", f"{exact_percent(found.confidence)} interval", *(f"study, {each}" for each in STATES))
    return Table(
        f"Share of the dense agents' score that is kept with {_highest(top)} of the weights pruned, here and "
        "in the study, on raw and on normalised states",
        ("algorithm", "pruner", "environment", *numbers[:2], "beside dense agents", *numbers[2:]),
        rows,
        numbers=numbers,
        data=results.STATISTICS.path,
    )


def _verdict(low: float, high: float) -> str:
    """What the interval allows to say about the difference from dense agents."""
    if not np.isfinite([low, high]).all():
        return "too few seeds"
    return "more" if low > 1 else "less" if high < 1 else "no difference found"


def _environment(environment: str) -> str:
    return "all environments" if environment == ALL else environment


def _highest(rows: pandas.DataFrame) -> str:
    return exact_percent(rows["sparsity"].max())


def _few_seeds(statistics: pandas.DataFrame) -> str:
    # Seeds of single environments: rows of `all` may count runs.
    seeds = int(statistics.loc[statistics["environment"] != ALL, "seeds"].min())
    if seeds >= MANY_SEEDS:
        return ""
    more = (
        f"The paper has {paper.SWEEP_SEEDS} seeds. For as many, repeat `make params`, as you ran it, "
        'with `SET="offline_rl.sweep.seeds=[0,1,2,3,4]"`, then `make repro`, which computes only what is new.'
    )
    if seeds >= FEW_SEEDS:
        return (
            f"Bootstrap intervals from {seeds} seeds are too narrow: in simulation, 95 % intervals of "
            "an environment contained the true value in 75 % of cases with 3 seeds, 90 % with 5 and 94 % "
            "with 10. " + more
        )
    return (
        f"{count(seeds, 'seed')} can't show how much agents differ from seed to seed; with fewer than "
        f"{FEW_SEEDS}, there are no intervals. Take differences between pruners as hints only. " + more
    )


def _few_updates(found: Results) -> str:
    updates = found.table(results.SCORES)["update"]
    if updates.empty or updates.max() >= paper.SWEEP_UPDATES:
        return ""
    return (
        f"Agents had at most {updates.max():,} gradient updates, the paper's {paper.SWEEP_UPDATES:,}. Agents "
        "that have not learned yet have nothing to lose by pruning."
    )


def _statistics_table(statistics: pandas.DataFrame, confidence: float) -> Table:
    level = exact_percent(confidence)
    rows = [
        (
            _environment(row.environment),
            name(row.algorithm),
            name(row.pruner),
            exact_percent(row.sparsity),
            f"{row.seeds:.0f}",
            number(row.score_mean),
            number(row.score_spread, 2),
            f"{number(row.score_min)} … {number(row.score_max)}",
            number(row.score_iqm),
            _bounds(row.score_iqm_low, row.score_iqm_high),
            number(row.retention),
            _bounds(row.retention_low, row.retention_high),
        )
        for row in statistics.itertuples()
        if row.environment != ALL or statistics["environment"].nunique() > 2
    ]
    scores = (
        "score",
        "between evaluations",
        "min … max",
        "IQM",
        f"IQM, {level}",
        "retention",
        f"retention, {level}",
    )
    numbers = ("sparsity", "seeds", *scores)
    head = ("environment", "algorithm", "pruner", *numbers)
    return Table(
        "D4RL score: mean, range and interquartile mean (IQM) over seeds, and the share of the dense "
        f"agents' IQM that is kept (retention); {level} intervals are stratified bootstrap intervals. "
        f"{_agent_s_score(statistics)}; the column “between evaluations” has the standard deviation "
        "between these evaluations, as the mean over seeds",
        head,
        rows,
        numbers=numbers,
        data=results.STATISTICS.path,
    )


def _agent_s_score(statistics: pandas.DataFrame) -> str:
    evaluations = int(statistics["evaluations"].min())
    if evaluations == 1:
        return "An agent's score is that of its only evaluation"
    return f"An agent's score is the mean of its last {evaluations} evaluations"


def _bounds(low: float, high: float) -> str:
    return f"{number(low)} … {number(high)}" if np.isfinite([low, high]).all() else NOT_GIVEN


def _profiles(found: Results) -> Iterator[Block]:
    profiles = found.table(results.PROFILES)
    if profiles.empty:
        yield results.not_run("Performance profiles", results.PROFILES)
        return
    dense = profiles["pruner"] == DENSE
    shown = profiles[dense | (profiles["sparsity"] == profiles["sparsity"].max())]
    yield Figure(
        "Performance profiles: the fraction of runs, over all environments and seeds, that score more than "
        f"τ; bands are {exact_percent(found.confidence)} bootstrap intervals, where there are three seeds or "
        "more",
        _charts(draw_profile, shown, ["algorithm"], "Performance profiles of {}."),
        pruner_keys(shown["pruner"]),
        data=results.PROFILES.path,
    )


def _charts(
    draw: Callable[..., None],
    rows: pandas.DataFrame,
    by: list[str],
    alt: str,
    axes: str = "",
    height: Callable[[pandas.DataFrame], float] = lambda _: CHART_INCHES[1],
) -> list[Panel]:
    """A chart for each group, with common limits for `axes`; `alt` has a `{}` for each column in `by`."""
    groups = list(rows.groupby(by))
    draws = shared([partial(draw, rows=own) for _, own in groups], axes)
    return [
        chart(
            drawn,
            alt.format(name(algorithm), *others),
            ", ".join(map(name, (algorithm, *others))),
            (CHART_INCHES[0], height(own)),
        )
        for drawn, ((algorithm, *others), own) in zip(draws, groups, strict=True)
    ]


def draw_retention(axis: Axes, rows: pandas.DataFrame) -> None:
    """Draw retention by environment (rows) and pruner (colour), with intervals; 1 is the dense agents'
    score."""
    environments = sorted(set(rows["environment"]) - {ALL}) + [ALL] * (ALL in set(rows["environment"]))
    pruners = rows["pruner"].nunique()
    axis.axvline(1, color=INK, linewidth=1, linestyle="--")
    for i, (_, colour, pruned) in enumerate(by_pruner(rows)):
        own = pruned.set_index("environment").reindex(environments)
        at = np.arange(len(environments)) + (i - (pruners - 1) / 2) * 0.7 / pruners
        axis.hlines(at, own["retention_low"], own["retention_high"], color=colour, linewidth=2, alpha=0.6)
        axis.plot(own["retention"], at, "o", color=colour, markersize=5)
    axis.set_yticks(range(len(environments)), [*map(_environment, environments)])
    axis.set_ylim(len(environments) - 0.5, -0.5)
    axis.set_xlim(left=min(0, axis.get_xlim()[0]))
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("retained score, dense = 1")


def draw_profile(axis: Axes, rows: pandas.DataFrame) -> None:
    """Draw the fraction of runs above each score, a curve for each pruner."""
    for pruner, colour, own in by_pruner(rows.sort_values("score")):
        axis.plot(own["score"], own["fraction"], color=colour, linestyle="--" if pruner == DENSE else "-")
        axis.fill_between(
            own["score"], own["fraction_low"], own["fraction_high"], color=colour, alpha=0.12, linewidth=0
        )
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("D4RL score τ")
    axis.set_ylabel("runs above τ")


def arnob(found: Results) -> Section:
    """Section `arnob`: Figures 1 to 4 and Table 1 of the paper."""
    scores = found.table(results.SCORES)
    blocks: list[Block] = [*_heldout(found), _claim(found)]
    for pruner, figure in PRUNER_FIGURES.items():
        blocks.append(_learning_curves(scores, pruner, f"{paper.ARNOB.name}, {figure}"))
    blocks += [*_return_by_sparsity(found), *_layers(found), _table_1(found), *_memory_figure(found)]
    others = [p for p in ordered(scores["pruner"], PRUNERS) if p not in {DENSE, *PRUNER_FIGURES}]
    details = [_learning_curves(scores, pruner, "") for pruner in others]
    title = "Single-shot pruning: Arnob et al.’s figures and table"
    return Section("arnob", title, paper.ARNOB.citation + ".", blocks, details)


def _claim(found: Results) -> Text:
    """The paper's claim beside our result; the paper prints no score, only curves."""
    statistics = found.table(results.STATISTICS)
    high = statistics[(statistics["sparsity"] == TABLE_1_SPARSITY) & (statistics["environment"] != ALL)]
    high = high[high["pruner"].isin(list(PRUNER_FIGURES))]
    here = "Here, no agent was compared at 95 % sparsity."
    if len(high):
        kept = int((high["retention"] >= 0.9).sum())
        here = (
            f"Here, at 95 % sparsity, {kept} of {count(len(high), 'combination')} of environment, "
            "algorithm and pruner (SNIP or GraSP) keep nine tenths of the dense score or more; the "
            "page's second answer shows them all."
        )
    return Text(
        f"The paper shows curves and prints no score. It says: “{paper.RETENTION_CLAIM}” (section 4). {here}"
    )


def _heldout(found: Results) -> list[Block]:
    """The losses of agents without an environment, if there are any."""
    losses = found.table(results.HELDOUT)
    if losses.empty:
        return []
    kind = ["environment", "algorithm", "pruner", "sparsity", "loss"]
    last = losses[losses["update"] == losses.groupby(kind[:2])["update"].transform("max")]
    means = last.groupby(kind)["value"].agg(["mean", "count"]).reset_index()
    rows = [(*row[:3], f"{100 * row[3]:g}", row[4], row[6], f"{row[5]:.3g}") for row in means.to_numpy()]
    title = (
        "Agents of data without an environment have no scores. This table has the means of their losses on "
        "the last tenth of the data, on which they were not trained; action_error is the mean squared error "
        "of their actions, whose range is [-1, 1]"
    )
    numbers = ("sparsity, %", "seeds", "mean")
    head = ("data", "algorithm", "pruner", "sparsity, %", "loss", "seeds", "mean")
    return [Table(title, head, rows, numbers=numbers)]


def _learning_curves(scores: pandas.DataFrame, pruner: str, of: str) -> Block:
    own = scores[scores["pruner"].isin([DENSE, pruner])]
    sparsities = sorted(own.loc[own["pruner"] == pruner, "sparsity"].unique())
    what = f"Learning curves of agents pruned by {name(pruner)}"
    if scores.empty:
        return results.not_run(what, results.SCORES, of)
    if not sparsities:
        return NotRun(what, f"To get it, put {pruner} into offline_rl.sweep.pruners, then run make repro", of)
    alt = f"D4RL score of {{}} on {{}} by updates, dense and pruned by {name(pruner)}."
    panels = _charts(partial(draw_learning, pruner=pruner), own, ["algorithm", "environment"], alt, "y")
    seeds = ", ".join(str(seed) for seed in sorted(own["seed"].unique()))
    keys = [Key(f"{exact_percent(s)} pruned", shade(pruner, s, sparsities)) for s in sparsities]
    caption = (
        f"{what}: mean over seeds {seeds}, band from lowest to highest (the paper's “100 % "
        "confidence interval”)"
    )
    return Figure(caption, panels, [Key(DENSE, INK, dashed=True), *keys], of, data=results.SCORES.path)


def shade(pruner: str, sparsity: float, sparsities: Sequence[float]) -> str:
    """A pruner's colour, the paler the lower the sparsity."""
    rank = sorted(sparsities).index(sparsity) + 1
    strength = 0.35 + 0.65 * rank / len(sparsities)
    colour = PRUNERS.get(pruner, OTHER)
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - strength * (255 - channel)):02x}" for channel in channels)


def draw_learning(axis: Axes, rows: pandas.DataFrame, pruner: str) -> None:
    """Draw mean and range over seeds of the score by update: dense, and each sparsity of a pruner."""
    sparsities = sorted(rows.loc[rows["pruner"] == pruner, "sparsity"].unique())
    for (kind, sparsity), own in rows.groupby(["pruner", "sparsity"], sort=False):
        dense = kind == DENSE
        plot_learning(axis, own, INK if dense else shade(pruner, sparsity, sparsities), dense)
    label_learning(axis)


def label_learning(axis: Axes) -> None:
    """Label the axes of learning curves."""
    axis.set_xlabel("gradient updates")
    axis.set_ylabel("D4RL score")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.locator_params(axis="x", nbins=4)  # five labels up to a million would overlap


def plot_learning(axis: Axes, rows: pandas.DataFrame, colour: str, dashed: bool) -> None:
    """Plot one curve of scores by update: the mean over seeds, and a band from the lowest to the highest."""
    score = rows.groupby("update")["d4rl_score"].agg(["mean", "min", "max"])
    axis.fill_between(score.index, score["min"], score["max"], color=colour, alpha=0.14, linewidth=0)
    axis.plot(score.index, score["mean"], "--" if dashed else "-", color=colour)


def _return_by_sparsity(found: Results) -> Iterator[Block]:
    statistics = found.table(results.STATISTICS)
    rows = statistics[statistics["environment"] != ALL]
    of = f"{paper.ARNOB.name}, Figures 1 and 2"
    what = "Score by sparsity"
    if rows[rows["sparsity"] > 0].empty:
        yield results.not_run(what, results.STATISTICS, of)
    if rows["sparsity"].nunique() < SEVERAL:
        return
    alt = "D4RL score of {} on {} by sparsity and pruner."
    yield Figure(
        f"{what}: mean and range over seeds; the dashed line shows dense agents",
        _charts(draw_sparsity, rows, ["algorithm", "environment"], alt, "xy"),
        pruner_keys(rows["pruner"]),
        of,
        data=results.STATISTICS.path,
    )


def draw_sparsity(axis: Axes, rows: pandas.DataFrame) -> None:
    """Draw the score by sparsity, a line for each pruner with whiskers from lowest to highest."""
    places = sorted(set(rows.loc[rows["sparsity"] > 0, "sparsity"]))
    pruners = [pruner for pruner, *_ in by_pruner(rows) if pruner != DENSE]
    shifts = dict(zip(pruners, np.linspace(-0.15, 0.15, len(pruners)), strict=True))
    for pruner, colour, own in by_pruner(rows.sort_values("sparsity")):
        if pruner == DENSE:
            dense = own.iloc[0]
            axis.axhline(dense["score_mean"], color=colour, linestyle="--")
            axis.axhspan(dense["score_min"], dense["score_max"], color=colour, alpha=0.08, linewidth=0)
            continue
        # Side by side, so that whiskers do not cover each other.
        at = own["sparsity"].map(places.index) + shifts[pruner]
        axis.vlines(at, own["score_min"], own["score_max"], color=colour, linewidth=2, alpha=0.5)
        axis.plot(at, own["score_mean"], "o-", color=colour, markersize=4)
    axis.set_xticks(range(len(places)), [percentage(sparsity) for sparsity in places])
    axis.set_xlabel("sparsity in %")
    axis.set_ylabel("D4RL score")


def _layers(found: Results) -> Iterator[Block]:
    layers = found.table(results.LAYERS)
    of = f"{paper.ARNOB.name}, Figure 3"
    if layers.empty:
        yield results.not_run("Weights left in each layer", results.LAYERS, of)
        return
    top = highest(layers)
    for environment, rows in top.groupby("environment", sort=False):
        yield Figure(
            f"Weights left in each layer, {environment}, {_highest(top)} pruned: mean over seeds, with "
            "whiskers of one standard deviation; the black mark is the dense layer",
            _charts(
                draw_layers,
                rows,
                ["algorithm", "network"],
                "Weights left in each layer of {}'s {} by pruner.",
                "x",
                lambda panel: 0.8 + 0.34 * panel["layer"].nunique(),
            ),
            [Key(DENSE, INK), *pruner_keys(rows["pruner"])],
            of,
            data=results.LAYERS.path,
        )


def draw_layers(axis: Axes, rows: pandas.DataFrame) -> None:
    """Draw the weights left by layer (rows) and pruner (colour), beside those of the dense layer."""
    layers = list(dict.fromkeys(rows["layer"]))
    pruners = rows["pruner"].nunique()
    totals = rows.groupby("layer")["weights_total"].first().reindex(layers)
    axis.plot(totals, range(len(layers)), "|", color=INK, markersize=11, markeredgewidth=2)
    for i, (_, colour, own) in enumerate(by_pruner(rows)):
        kept = own.groupby("layer")["weights_kept"].agg(["mean", "std"]).reindex(layers)
        at = np.arange(len(layers)) + (i - (pruners - 1) / 2) * 0.6 / pruners
        deviation = kept["std"].fillna(0)
        low, high = (kept["mean"] - deviation).clip(lower=0), kept["mean"] + deviation
        axis.hlines(at, low, high, color=colour, linewidth=2, alpha=0.5)
        axis.plot(kept["mean"], at, "o", color=colour, markersize=4)
    axis.set_xscale("symlog", linthresh=10, linscale=0.5)
    axis.set_xlim(-1, 3 * totals.max())
    axis.set_xticks([0, 10, 1000, 100_000], ["0", "10", "1,000", "100,000"])
    axis.set_yticks(range(len(layers)), layers)
    axis.set_ylim(len(layers) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("weights left")


def _table_1(found: Results) -> Block:
    sizes = found.table(results.SIZES)
    of = f"{paper.ARNOB.name}, Table 1"
    what = "Megabytes of the networks' weights"
    bcq = [model for model in sizes["model"].unique() if model.endswith("/bcq")]
    if not bcq:
        return results.not_run(what, results.SIZES, of)
    environment = _environment_like_the_papers(bcq)
    own = sizes[sizes["model"] == f"{environment}/bcq"]
    rows = []
    for row in (*paper.TABLE_1, *PACKED_ROWS):
        chosen = own[(own["pruner"] == row.pruner) & (own["format"] == row.format)]
        chosen = chosen[chosen["sparsity"] == (0.0 if row.pruner == DENSE else TABLE_1_SPARSITY)]
        megabytes = chosen.groupby("network")["bytes"].mean() / 1e6
        for network in ("actor", "critic", "vae"):
            ours, printed = megabytes.get(network, np.nan), getattr(row, network)
            shown = f"{printed:g}" if np.isfinite(printed) else NOT_GIVEN
            rows.append((row.method, network, number(ours, 4), shown, number(ours / printed)))
    same = environment in paper.TABLE_1_ENVIRONMENTS
    note = "" if same else "; its first and last layers are smaller than those of the paper's networks"
    return Table(
        f"{what}: BCQ on {environment}, mean over seeds{note}. The paper's sparse networks are COO tensors "
        "with two 64-bit indices per weight; packed networks are this project's files",
        ("method", "network", "ours, MB", "paper, MB", "ours / paper"),
        rows,
        of,
        ("ours, MB", "paper, MB", "ours / paper"),
        data=results.SIZES.path,
    )


def _environment_like_the_papers(models: Sequence[str]) -> str:
    """An environment with networks of the paper's size if there is one, else that of the first of
    `models`."""
    environments = [model.split("/")[0] for model in models]
    return next((each for each in paper.TABLE_1_ENVIRONMENTS if each in environments), environments[0])


def _memory_figure(found: Results) -> Iterator[Block]:
    sizes = found.table(results.SIZES)
    of = f"{paper.ARNOB.name}, Figure 4"
    if sizes.empty:
        yield results.not_run("Megabytes by sparsity", results.SIZES, of)
    if sizes["sparsity"].nunique() < SEVERAL:
        return
    environment = _environment_like_the_papers(sizes["model"].unique())
    own = sizes[sizes["model"].str.startswith(f"{environment}/")]
    panels = [
        chart(
            partial(draw_memory, rows=rows),
            f"Megabytes of {model}'s {network} by sparsity and storage format.",
            f"{name(str(model).split('/')[1])}, {name(str(network))}",
        )
        for (model, network), rows in own.groupby(["model", "network"])
    ]
    keys = [Key(FORMAT_NAMES[each], colour, each == "entropy bound") for each, colour in FORMATS.items()]
    caption = (
        f"Megabytes of {environment}'s networks by sparsity, mean over pruners and seeds, for each storage "
        "format. The paper draws the first two"
    )
    yield Figure(caption, panels, keys, of, data=results.SIZES.path)


def draw_memory(axis: Axes, rows: pandas.DataFrame) -> None:
    """Draw megabytes by sparsity, a line for each format and one for the entropy bound."""
    for stored, colour in FORMATS.items():
        bound = stored == "entropy bound"
        own = rows if bound else rows[rows["format"] == stored]
        mean = own.groupby("sparsity")["entropy_bound_bytes" if bound else "bytes"].mean() / 1e6
        axis.plot(100 * mean.index, mean, "--" if bound else "-", marker="o", markersize=3.5, color=colour)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("sparsity in %")
    axis.set_ylabel("MB")


def bytes_of_agents(found: Results) -> tuple[str, list[Block]]:
    """A sentence on the bytes that pruning saves, and its figure."""
    sizes = found.table(results.SIZES)
    top = highest(sizes)
    if top.empty:
        return "", [results.not_run("Bytes of pruned networks", results.SIZES)]
    saving = savings(top)
    best = smallest(saving)
    sentence = (
        f"At {_highest(top)} sparsity an agent's weights take {number(saving['coo'], 2)} times fewer "
        f"bytes in the paper's format (the paper: {paper.SPARSE_SAVING}) and {number(saving[best], 2)} "
        f"times fewer as {FORMAT_NAMES.get(best, best)}"
    )
    figure = Figure(
        f"How many times fewer bytes than dense tensors all networks take, {_highest(top)} pruned",
        [
            chart(
                partial(draw_savings, saving=saving),
                "How many times fewer bytes than dense tensors each format takes.",
                "",
                (CHART_INCHES[0], 2.1),
            )
        ],
        data=results.SIZES.path,
    )
    return sentence, [figure]


def rounded_values(found: Results) -> Block:
    """Bytes and scores of agents that were packed with fewer bits per value."""
    quantized = found.table(results.QUANTIZED)
    if quantized.empty:
        return results.not_run("Bytes and scores of agents with rounded values", results.QUANTIZED)
    kinds = [kind for kind in VALUES if kind in set(quantized["values"])]
    agents = quantized.groupby(["environment", "algorithm", "pruner", "values"])
    means = agents[["bytes", "d4rl_score"]].mean().unstack("values")
    rows = [
        (
            str(environment),
            name(str(algorithm)),
            name(str(pruner)),
            *(number(row["bytes", kind] / 1e3) for kind in kinds),
            *(number(row["d4rl_score", kind]) for kind in kinds),
        )
        for (environment, algorithm, pruner), row in means.iterrows()
    ]
    numbers = [f"{what} {VALUES[kind]}" for what in ("kB", "score") for kind in kinds]
    caption = (
        f"Agents, {_highest(quantized)} pruned, packed with their values as "
        f"{listing([VALUES[kind] for kind in kinds])}: kilobytes and D4RL score, mean over seeds"
    )
    if len(kinds) > 1:
        caption += (
            ". Even the least rounding makes episodes diverge, so scores move as they would with another "
            "draw of noise"
        )
    return Table(
        caption,
        ("environment", "algorithm", "pruner", *numbers),
        rows,
        numbers=numbers,
        data=results.QUANTIZED.path,
    )


def savings(rows: pandas.DataFrame) -> pandas.Series:
    """How many times fewer bytes than dense tensors each format takes; also for the entropy bound."""
    total = rows.groupby("format")["bytes"].sum()
    bound = rows.loc[rows["format"] == DENSE, "entropy_bound_bytes"].sum()
    total = total.reindex(FORMATS).dropna()
    return total[DENSE] / pandas.concat([total, pandas.Series({"entropy bound": bound})])


def smallest(saving: pandas.Series) -> str:
    """The format that takes the fewest bytes, by its :func:`savings`."""
    return str(saving.drop([DENSE, "entropy bound"]).idxmax())


def draw_savings(axis: Axes, saving: pandas.Series) -> None:
    """Draw a bar for each format, with its number."""
    names = [fill(FORMAT_NAMES.get(stored, stored).partition(",")[0], 19) for stored in saving.index]
    bars = axis.barh(
        names, saving, color=[FORMATS.get(stored, OTHER) for stored in saving.index], height=0.62
    )
    axis.bar_label(bars, [f"{number(value, 2)}×" for value in saving], padding=3, color=MUTED)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.12)
    axis.set_xlabel("times fewer bytes")
