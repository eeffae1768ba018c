"""Pruning before training: returns and bytes of the agents, and Arnob et al.'s figures and table."""

from collections.abc import Iterator, Sequence
from functools import partial
from textwrap import fill

import numpy as np
import pandas
from matplotlib.axes import Axes

from singleshot.pruning.variant import DENSE, percentage
from tasks.reporting import paper, result_tables, results
from tasks.reporting.look import (
    BOUND,
    CHART_INCHES,
    FORMATS,
    INK,
    MUTED,
    OTHER,
    PRUNERS,
    Figure,
    Key,
    Panel,
    animation,
    by_pruner,
    chart,
    charts,
    name,
    ordered,
    pruner_keys,
)
from tasks.reporting.results import Results
from tasks.reporting.words import NOT_GIVEN, Row, exact_percent, number, percent

ALL = "all"
PREFERRED = "snip"
"""Pruner of the page's first number, if it was run."""
PAPERS = ("snip", "grasp")
"""Pruners in the paper's Figures 1 and 2."""
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
    "coo": "coordinates (COO), the paper's torch.to_sparse()",
    "csr_int32": "compressed rows (CSR), 32-bit indices",
    "packed_raw": "packed files",
    "packed_exponents": "packed files with coded exponents",
    BOUND: "masks and values without a pattern",
}
VALUES = {"raw": "float32", "exponents": "coded float32", "fp16": "float16", "int8": "int8"}


def highest(rows: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of the highest sparsity; none if nothing was pruned."""
    pruned = rows[rows["sparsity"] > 0]
    return pruned[pruned["sparsity"] == pruned["sparsity"].max()]


def most_pruned(statistics: pandas.DataFrame) -> pandas.DataFrame:
    """The statistics of the highest sparsity; without those of all environments if there is only one."""
    return _without_repetition(highest(statistics))


def _without_repetition(statistics: pandas.DataFrame) -> pandas.DataFrame:
    """The statistics; of one environment, `all` says the same."""
    several = statistics["environment"].nunique() > 2
    return statistics if several else statistics[statistics["environment"] != ALL]


def kept_overall(statistics: pandas.DataFrame) -> pandas.DataFrame:
    """The statistics over all environments of one pruner's highest sparsity, a row for each algorithm."""
    top = highest(statistics)
    pruners = ordered(top["pruner"], PRUNERS)
    pruner = PREFERRED if PREFERRED in pruners else next(iter(pruners), "")
    return top[(top["pruner"] == pruner) & (top["environment"] == ALL) & top["retention"].notna()]


def dense_score(statistics: pandas.DataFrame) -> float:
    """The lowest score of an algorithm's dense agents over all environments."""
    dense = (statistics["sparsity"] == 0) & (statistics["environment"] == ALL)
    return float(statistics.loc[dense, "score_iqm"].min())


def intervals(rows: pandas.DataFrame) -> list[str]:
    """The interval of each row's retention; none if one of them has too few seeds."""
    bounds = rows[["retention_low", "retention_high"]]
    return [_interval(*each) for each in bounds.to_numpy()] if bounds.notna().all(axis=None) else []


def _interval(low: float, high: float) -> str:
    return f"{percent(low)} to {percent(high)}" if np.isfinite([low, high]).all() else NOT_GIVEN


def least_seeds(statistics: pandas.DataFrame) -> int:
    """The least number of seeds of an environment's agents; rows of `all` may count runs."""
    return int(statistics.loc[statistics["environment"] != ALL, "seeds"].min())


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


def densities(found: Results) -> list[Row]:
    """The weights that each part keeps: retention says little if the policy keeps more of them."""
    top = highest(found.table(result_tables.LAYERS))
    agents = ["environment", "algorithm", "pruner"]
    counts = top.groupby([*agents, "part"], sort=False)[["weights_kept", "weights_total"]].sum()
    kept = (100 * counts["weights_kept"] / counts["weights_total"]).unstack("part")
    return [
        {
            "environment": str(environment),
            "algorithm": name(str(algorithm)),
            "pruner": name(str(pruner)),
            **{str(part): number(value) for part, value in row.items()},
        }
        for (environment, algorithm, pruner), row in kept.iterrows()
    ]


def same_density(rows: Sequence[Row]) -> str:
    """The percentage that all parts of all agents keep; nothing if they differ."""
    written = {cell for row in rows for cell in list(row.values())[3:]} - {NOT_GIVEN}
    return written.pop() if len(written) == 1 else ""


def best_pruners(top: pandas.DataFrame) -> list[str]:
    """What the pruner with the highest mean keeps, for each algorithm; none if dense agents score nothing."""
    overall = top[top["environment"] == ALL] if ALL in set(top["environment"]) else top
    best = overall.dropna(subset="retention").sort_values("retention").groupby("algorithm").tail(1)
    return [
        f"{name(row.algorithm)} agents {percent(row.retention)} with {name(row.pruner)}"
        for row in best.sort_values("algorithm").itertuples()
    ]


def study_claims(found: Results) -> list[Row]:
    """The claims of this repository's study, with the difference in points that each is about."""
    return [
        {
            "claim": row.claim,
            "compared": row.compared,
            "points": f"{row.value:+.1f} ({row.low:+.1f} to {row.high:+.1f})",
            "p": number(row.p_holm, 2),
            "seeds": str(row.seeds),
        }
        for row in found.table(results.STUDY).dropna(subset="low").itertuples()
    ]


def kept(top: pandas.DataFrame, level: str) -> list[Row]:
    """The shares that are kept, with their intervals of a confidence level."""
    return [
        {
            "algorithm": name(row.algorithm),
            "pruner": name(row.pruner),
            "environment": _environment(row.environment),
            "kept": percent(row.retention),
            f"{level} interval": _interval(row.retention_low, row.retention_high),
            "beside dense agents": _verdict(row.retention_low, row.retention_high),
        }
        for row in top.sort_values(["algorithm", "environment"], kind="stable").itertuples()
    ]


def _verdict(low: float, high: float) -> str:
    """What the interval allows to say about the difference from dense agents."""
    if not np.isfinite([low, high]).all():
        return "too few seeds"
    return "more" if low > 1 else "less" if high < 1 else "no difference found"


def _environment(environment: str) -> str:
    return "all environments" if environment == ALL else environment


def scores(statistics: pandas.DataFrame, level: str) -> list[Row]:
    """Means, ranges and intervals of scores and retention."""
    return [
        {
            "environment": _environment(row.environment),
            "algorithm": name(row.algorithm),
            "pruner": name(row.pruner),
            "sparsity": exact_percent(row.sparsity),
            "seeds": f"{row.seeds:.0f}",
            "score": number(row.score_mean),
            "between evaluations": number(row.score_spread, 2),
            "min … max": f"{number(row.score_min)} … {number(row.score_max)}",
            "IQM": number(row.score_iqm),
            f"IQM, {level}": _bounds(row.score_iqm_low, row.score_iqm_high),
            "retention": number(row.retention),
            f"retention, {level}": _bounds(row.retention_low, row.retention_high),
        }
        for row in _without_repetition(statistics).itertuples()
    ]


def _bounds(low: float, high: float) -> str:
    return f"{number(low)} … {number(high)}" if np.isfinite([low, high]).all() else NOT_GIVEN


def retention(top: pandas.DataFrame) -> Figure:
    """Chart: the share of the dense agents' score that pruned agents keep."""
    alt = "Retained score of {} by environment and pruner; the table is in the details."

    def height(rows: pandas.DataFrame) -> float:
        return 1.2 + 0.42 * rows["environment"].nunique()

    return Figure(charts(draw_retention, top, ["algorithm"], alt, "x", height), pruner_keys(top["pruner"]))


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


def performance_profiles(found: Results) -> Figure:
    """Chart: the fraction of runs above each score, dense and at the highest sparsity."""
    profiles = found.table(result_tables.PROFILES)
    dense = profiles["pruner"] == DENSE
    shown = profiles[dense | (profiles["sparsity"] == profiles["sparsity"].max())]
    panels = charts(draw_profile, shown, ["algorithm"], "Performance profiles of {}.")
    return Figure(panels, pruner_keys(shown["pruner"]))


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


def near_papers_claim(statistics: pandas.DataFrame) -> pandas.DataFrame:
    """Statistics of the agents that the paper claims something of."""
    return statistics[
        (statistics["sparsity"] == TABLE_1_SPARSITY)
        & (statistics["environment"] != ALL)
        & statistics["pruner"].isin(PAPERS)
    ]


def heldout_losses(found: Results) -> list[Row]:
    """The last losses of agents without an environment."""
    losses = found.table(result_tables.HELDOUT)
    kind = ["environment", "algorithm", "pruner", "sparsity", "loss"]
    last = losses[losses["update"] == losses.groupby(kind[:2])["update"].transform("max")]
    means = last.groupby(kind)["value"].agg(mean="mean", seeds="count").reset_index()
    return [
        {
            "data": row.environment,
            "algorithm": row.algorithm,
            "pruner": row.pruner,
            "sparsity, %": f"{100 * row.sparsity:g}",
            "loss": row.loss,
            "seeds": str(row.seeds),
            "mean": f"{row.mean:.3g}",
        }
        for row in means.itertuples()
    ]


def other_pruners(found: Results) -> list[str]:
    """Pruners that the paper has no figure of."""
    return [
        p for p in ordered(found.table(result_tables.SCORES)["pruner"], PRUNERS) if p not in {DENSE, *PAPERS}
    ]


def first_evaluations(scores: pandas.DataFrame) -> list[str]:
    """The number of updates before each algorithm's first evaluation: `1,600 (BCQ)`."""
    return _by_algorithm(scores.groupby("algorithm")["update"].min())


def _by_algorithm(updates: pandas.Series) -> list[str]:
    return [f"{n:,} ({name(str(algorithm))})" for algorithm, n in updates.items()]


def learning_curves(found: Results, pruner: str) -> Figure:
    """Chart: the score by gradient updates, dense and at each sparsity of a pruner."""
    scores = found.table(result_tables.SCORES)
    own = scores[scores["pruner"].isin([DENSE, pruner])]
    sparsities = sorted(own.loc[own["pruner"] == pruner, "sparsity"].unique())
    if not sparsities:
        return Figure([])
    alt = f"D4RL score of {{}} on {{}} by updates, dense and pruned by {name(pruner)}."
    panels = charts(partial(draw_learning, pruner=pruner), own, ["algorithm", "environment"], alt, "y")
    keys = [Key(f"{exact_percent(s)} pruned", shade(pruner, s, sparsities)) for s in sparsities]
    return Figure(panels, [Key(DENSE, INK, dashed=True), *keys])


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


def score_by_sparsity(statistics: pandas.DataFrame) -> Figure:
    """Chart: the score by sparsity and pruner."""
    rows = statistics[statistics["environment"] != ALL]
    alt = "D4RL score of {} on {} by sparsity and pruner."
    panels = charts(draw_sparsity, rows, ["algorithm", "environment"], alt, "xy")
    return Figure(panels, pruner_keys(rows["pruner"]))


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


def layers(found: Results) -> Iterator[tuple[str, Figure]]:
    """Chart for each environment: the weights that the highest sparsity leaves in each layer."""
    alt = "Weights left in each layer of {}'s {} by pruner."

    def height(rows: pandas.DataFrame) -> float:
        return 0.8 + 0.34 * rows["layer"].nunique()

    for environment, rows in highest(found.table(result_tables.LAYERS)).groupby("environment", sort=False):
        panels = charts(draw_layers, rows, ["algorithm", "network"], alt, "x", height)
        yield str(environment), Figure(panels, [Key(DENSE, INK), *pruner_keys(rows["pruner"])])


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


def table_1(sizes: pandas.DataFrame, environment: str) -> list[Row]:
    """Table 1: megabytes of BCQ's networks on an environment, beside the paper's."""
    own = sizes[sizes["model"] == f"{environment}/bcq"]
    rows: list[Row] = []
    if own.empty:
        return rows
    for row in (*paper.TABLE_1, *PACKED_ROWS):
        chosen = own[(own["pruner"] == row.pruner) & (own["format"] == row.format)]
        chosen = chosen[chosen["sparsity"] == (0.0 if row.pruner == DENSE else TABLE_1_SPARSITY)]
        megabytes = chosen.groupby("network")["bytes"].mean() / 1e6
        for network in ("actor", "critic", "vae"):
            ours, printed = megabytes.get(network, np.nan), getattr(row, network)
            rows.append(
                {
                    "method": row.method,
                    "network": network,
                    "ours, MB": number(ours, 4),
                    "paper, MB": f"{printed:g}" if np.isfinite(printed) else NOT_GIVEN,
                    "ours / paper": number(ours / printed),
                }
            )
    return rows


def like_the_papers(sizes: pandas.DataFrame, algorithm: str = "") -> str:
    """An environment with networks of the paper's size if there is one, else the first; "" if none."""
    agents = [model.split("/") for model in sizes["model"].unique() if model.endswith(algorithm)]
    environments = [environment for environment, *_ in agents]
    alike = [each for each in paper.TABLE_1_ENVIRONMENTS if each in environments]
    return next(iter([*alike, *environments]), "")


def memory(sizes: pandas.DataFrame, environment: str) -> Figure:
    """Chart: the megabytes of an environment's networks by sparsity, for each storage format."""
    own = sizes[sizes["model"].str.startswith(f"{environment}/")]
    panels = [
        chart(
            partial(draw_memory, rows=rows),
            f"Megabytes of {model}'s {network} by sparsity and storage format.",
            f"{name(str(model).split('/')[1])}, {name(str(network))}",
        )
        for (model, network), rows in own.groupby(["model", "network"])
    ]
    keys = [Key(FORMAT_NAMES[each], colour, each == BOUND) for each, colour in FORMATS.items()]
    return Figure(panels, keys)


def draw_memory(axis: Axes, rows: pandas.DataFrame) -> None:
    """Draw megabytes by sparsity, a line for each format and one for the entropy bound."""
    for stored, colour in FORMATS.items():
        bound = stored == BOUND
        own = rows if bound else rows[rows["format"] == stored]
        mean = own.groupby("sparsity")["entropy_bound_bytes" if bound else "bytes"].mean() / 1e6
        axis.plot(100 * mean.index, mean, "--" if bound else "-", marker="o", markersize=3.5, color=colour)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("sparsity in %")
    axis.set_ylabel("MB")


def kinds_of_values(quantized: pandas.DataFrame) -> dict[str, str]:
    """How agents with rounded values were packed, by the name in the table."""
    return {kind: words for kind, words in VALUES.items() if kind in set(quantized["values"])}


def rounded_values(quantized: pandas.DataFrame) -> list[Row]:
    """Bytes and scores of agents that were packed with fewer bits per value, means over seeds."""
    agents = quantized.groupby(["environment", "algorithm", "pruner", "values"])
    means = agents[["bytes", "d4rl_score"]].mean().unstack("values")
    kinds = kinds_of_values(quantized).items()
    return [
        {
            "environment": str(environment),
            "algorithm": name(str(algorithm)),
            "pruner": name(str(pruner)),
            **{f"kB {words}": number(row["bytes", kind] / 1e3) for kind, words in kinds},
            **{f"score {words}": number(row["d4rl_score", kind]) for kind, words in kinds},
        }
        for (environment, algorithm, pruner), row in means.iterrows()
    ]


def savings(rows: pandas.DataFrame) -> pandas.Series:
    """How many times fewer bytes than dense tensors each format takes; also for the entropy bound."""
    total = rows.groupby("format")["bytes"].sum()
    bound = rows.loc[rows["format"] == DENSE, "entropy_bound_bytes"].sum()
    total = total.reindex(FORMATS).dropna()
    return total[DENSE] / pandas.concat([total, pandas.Series({BOUND: bound})])


def smallest(saving: pandas.Series) -> str:
    """The format that takes the fewest bytes, by its :func:`savings`."""
    return str(saving.drop([DENSE, BOUND]).idxmax())


def other_savings(saving: pandas.Series) -> pandas.Series:
    """The :func:`savings` of sparse formats but for the smallest."""
    return saving.drop([DENSE, BOUND, smallest(saving)])


def savings_by_format(saving: pandas.Series) -> Figure:
    """Chart: how many times fewer bytes each format takes, from :func:`savings`."""
    alt = "How many times fewer bytes than dense tensors each format takes."
    size = (CHART_INCHES[0], 0.6 + 0.42 * len(saving))
    return Figure([chart(partial(draw_savings, saving=saving), alt, "", size)])


def draw_savings(axis: Axes, saving: pandas.Series) -> None:
    """Draw a bar for each format, with its number."""
    names = [fill(FORMAT_NAMES.get(stored, stored).partition(",")[0], 24) for stored in saving.index]
    bars = axis.barh(
        names, saving, color=[FORMATS.get(stored, OTHER) for stored in saving.index], height=0.62
    )
    axis.bar_label(bars, [f"{number(value, 2)}×" for value in saving], padding=3, color=MUTED)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.12)
    axis.set_xlabel("times fewer bytes")
