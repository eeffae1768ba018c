"""Pruning before training: returns and bytes of the agents, and Arnob et al.'s figures and table."""

from collections.abc import Iterator, Sequence
from textwrap import fill

import numpy as np
import pandas

from singleshot.pruning.variant import DENSE
from tasks.reporting import paper, results
from tasks.reporting.look import (
    BOUND,
    FORMATS,
    INK,
    OTHER,
    PRUNERS,
    Chart,
    Figure,
    Key,
    Panel,
    animation,
    name,
    ordered,
    pruner_keys,
)
from tasks.reporting.results import Results
from tasks.reporting.scores import ALL
from tasks.reporting.words import NOT_GIVEN, Row, exact_percent, number, percent, span

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

RETENTION = Chart(
    "dots",
    "retained score, dense = 1",
    alt="Retained score of {} by environment and pruner.",
    share="x",
    mark=1,
)
PROFILES = Chart("lines", "D4RL score τ", "runs above τ", "Performance profiles of {}.")
LEARNING = Chart("lines", "gradient updates", "D4RL score", "D4RL score of {} by updates.", "y")
SPARSITY = Chart("lines", "sparsity in %", "D4RL score", "D4RL score of {} by sparsity.", "xy")
LAYERS = Chart("dots", "weights left", alt="Weights left in each layer of {} by pruner.", share="x", log="X")
MEMORY = Chart("lines", "sparsity in %", "MB", "Megabytes of {} by sparsity and storage format.")
SAVINGS = Chart(
    "bars", "times fewer bytes", alt="How many times fewer bytes than dense tensors each format takes."
)


def highest(rows: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of the highest sparsity; none if nothing was pruned."""
    pruned = rows[rows["sparsity"] > 0]
    return pruned[pruned["sparsity"] == pruned["sparsity"].max()]


def without_repetition(statistics: pandas.DataFrame) -> pandas.DataFrame:
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
    top = highest(found.table(results.LAYERS))
    counts = top.groupby(["environment", "algorithm", "pruner", "part"], sort=False)
    counts = counts[["weights_kept", "weights_total"]].sum()
    kept = (100 * counts["weights_kept"] / counts["weights_total"]).unstack("part")
    return [
        {"environment": environment, "algorithm": name(algorithm), "pruner": name(pruner)}
        | {str(part): number(value) for part, value in row.items()}
        for (environment, algorithm, pruner), row in kept.iterrows()
    ]


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
            "min … max": span(row.score_min, row.score_max),
            "IQM": number(row.score_iqm),
            f"IQM, {level}": span(row.score_iqm_low, row.score_iqm_high),
            "retention": number(row.retention),
            f"retention, {level}": span(row.retention_low, row.retention_high),
        }
        for row in without_repetition(statistics).itertuples()
    ]


def retention(top: pandas.DataFrame) -> Figure:
    """The share of the dense agents' score that pruned agents keep, by environment; `all` last."""
    bounds = {"retention": "x", "retention_low": "low", "retention_high": "high", "pruner": "series"}
    rows = top.rename(columns=bounds).assign(y=top["environment"].map(_environment))
    rows = rows.sort_values("environment", key=lambda own: own.replace(ALL, "~"), kind="stable")
    return RETENTION.figure(rows, pruner_keys(rows["series"]), ["algorithm"])


def performance_profiles(found: Results) -> Figure:
    """The fraction of runs above each score, dense and at the highest sparsity."""
    profiles = found.table(results.PROFILES)
    shown = profiles[profiles["sparsity"].isin([0, profiles["sparsity"].max()])].sort_values("score")
    columns = {
        "score": "x",
        "fraction": "y",
        "fraction_low": "low",
        "fraction_high": "high",
        "pruner": "series",
    }
    return PROFILES.figure(shown.rename(columns=columns), pruner_keys(shown["pruner"]), ["algorithm"])


def heldout_losses(found: Results) -> list[Row]:
    """The last losses of agents without an environment."""
    losses = found.table(results.HELDOUT)
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
    own = ordered(found.table(results.SCORES)["pruner"], PRUNERS)
    return [pruner for pruner in own if pruner not in {DENSE, *PAPERS}]


def first_evaluations(scores: pandas.DataFrame) -> list[str]:
    """The number of updates before each algorithm's first evaluation: `1,600 (BCQ)`."""
    first = scores.groupby("algorithm")["update"].min()
    return [f"{n:,} ({name(str(algorithm))})" for algorithm, n in first.items()]


def learning_curves(found: Results, pruner: str) -> Figure:
    """Mean and range over seeds of the score by gradient updates, dense and at each sparsity of a pruner."""
    scores = found.table(results.SCORES)
    own = scores[scores["pruner"].isin([DENSE, pruner])]
    sparsities = sorted(own.loc[own["pruner"] == pruner, "sparsity"].unique())
    if not sparsities:
        return Figure([])
    by = ["algorithm", "environment", "sparsity", "update"]
    rows = own.groupby(by)["d4rl_score"].agg(y="mean", low="min", high="max").reset_index()
    keys = {0.0: Key(DENSE, INK, dashed=True)}
    keys |= {
        each: Key(f"{exact_percent(each)} pruned", shade(pruner, each, sparsities)) for each in sparsities
    }
    return LEARNING.figure(rows.rename(columns={"update": "x", "sparsity": "series"}), keys, by[:2])


def shade(pruner: str, sparsity: float, sparsities: Sequence[float]) -> str:
    """A pruner's colour, the paler the lower the sparsity."""
    strength = 0.35 + 0.65 * (sorted(sparsities).index(sparsity) + 1) / len(sparsities)
    colour = PRUNERS.get(pruner, OTHER)
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - strength * (255 - channel)):02x}" for channel in channels)


def score_by_sparsity(statistics: pandas.DataFrame) -> Figure:
    """Mean and range of the score by sparsity and pruner; dense agents are a line across."""
    rows = statistics[statistics["environment"] != ALL]
    dense = rows[rows["pruner"] == DENSE].drop(columns="sparsity")
    across = dense.merge(rows[["sparsity"]][rows["sparsity"] > 0].drop_duplicates(), how="cross")
    rows = pandas.concat([rows[rows["pruner"] != DENSE], across]).sort_values("sparsity")
    columns = {"score_mean": "y", "score_min": "low", "score_max": "high", "pruner": "series"}
    shown = rows.rename(columns=columns).assign(x=100 * rows["sparsity"])
    return SPARSITY.figure(shown, pruner_keys(rows["pruner"]), ["algorithm", "environment"])


def layers(found: Results) -> Iterator[tuple[str, Figure]]:
    """For each environment, the weights that the highest sparsity leaves in each layer, and dense ones."""
    columns = ["algorithm", "network", "layer"]
    for environment, rows in highest(found.table(results.LAYERS)).groupby("environment", sort=False):
        kept = (
            rows.groupby([*columns, "pruner"], sort=False)["weights_kept"]
            .agg(x="mean", std="std")
            .reset_index()
        )
        deviation = kept["std"].fillna(0)
        kept = kept.assign(low=(kept["x"] - deviation).clip(lower=0), high=kept["x"] + deviation)
        dense = rows.drop_duplicates(columns).rename(columns={"weights_total": "x"}).assign(pruner=DENSE)
        shown = pandas.concat([dense, kept]).rename(columns={"layer": "y", "pruner": "series"})
        keys = {DENSE: Key(DENSE, INK, marker="|")} | pruner_keys(kept["pruner"])
        yield str(environment), LAYERS.figure(shown, keys, columns[:2])


def table_1(sizes: pandas.DataFrame, environment: str) -> list[Row]:
    """Table 1: megabytes of BCQ's networks on an environment, beside the paper's."""
    own = sizes[sizes["model"] == f"{environment}/bcq"]
    rows: list[Row] = []
    for row in (*paper.TABLE_1, *PACKED_ROWS) if len(own) else ():
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
    """The megabytes of an environment's networks by sparsity, for each format and the entropy bound."""
    own = sizes[sizes["model"].str.startswith(f"{environment}/")]
    bound = own[own["format"] == DENSE].assign(format=BOUND)
    rows = pandas.concat([own, bound.assign(bytes=bound["entropy_bound_bytes"])])
    rows = rows.assign(algorithm=rows["model"].str.split("/").str[1])
    by = ["algorithm", "network", "format", "sparsity"]
    means = rows.groupby(by)["bytes"].mean().reset_index()
    shown = means.assign(x=100 * means["sparsity"], y=means["bytes"] / 1e6, series=means["format"])
    keys = {each: Key(FORMAT_NAMES[each], colour, each == BOUND) for each, colour in FORMATS.items()}
    return MEMORY.figure(shown[shown["series"].isin(keys)], keys, by[:2])


def kinds_of_values(quantized: pandas.DataFrame) -> dict[str, str]:
    """How agents with rounded values were packed, by the name in the table."""
    return {kind: words for kind, words in VALUES.items() if kind in set(quantized["values"])}


def rounded_values(quantized: pandas.DataFrame) -> list[Row]:
    """Bytes and scores of agents that were packed with fewer bits per value, means over seeds."""
    agents = quantized.groupby(["environment", "algorithm", "pruner", "values"])
    means = agents[["bytes", "d4rl_score"]].mean().unstack("values")
    kinds = kinds_of_values(quantized).items()
    return [
        {"environment": environment, "algorithm": name(algorithm), "pruner": name(pruner)}
        | {f"kB {words}": number(row["bytes", kind] / 1e3) for kind, words in kinds}
        | {f"score {words}": number(row["d4rl_score", kind]) for kind, words in kinds}
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


def savings_by_format(saving: pandas.Series) -> Figure:
    """How many times fewer bytes each format takes, from :func:`savings`."""
    names = [fill(FORMAT_NAMES[each].partition(",")[0], 24) for each in saving.index]
    labels = [f"{number(value, 2)}×" for value in saving]
    rows = pandas.DataFrame({"x": saving.to_numpy(), "y": names, "series": saving.index, "label": labels})
    return SAVINGS.figure(rows, {each: Key(each, colour) for each, colour in FORMATS.items()})
