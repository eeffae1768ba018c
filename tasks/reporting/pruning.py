"""Pruning before training: returns and bytes of the agents, and Arnob et al.'s figures and table."""

from collections.abc import Iterator
from dataclasses import replace
from textwrap import fill

import numpy as np
import pandas
from matplotlib import colormaps
from matplotlib.colors import to_hex

from singleshot.pruning.variant import DENSE
from tasks.reporting import paper, results
from tasks.reporting.look import (
    INK,
    PRUNERS,
    SERIES,
    Chart,
    Figure,
    Key,
    Panel,
    data_uri,
    name,
    ordered,
    picture,
    pruner_keys,
)
from tasks.reporting.results import Results
from tasks.reporting.scores import ALL
from tasks.reporting.words import Row, exact_percent, interval, number, percent

BOUND = "entropy bound"
"""Bytes at least, were masks and values without any pattern."""
FORMATS = {
    DENSE: Key("dense tensors", INK),
    "coo": Key("coordinates (COO), the paper's torch.to_sparse()", SERIES[0]),
    "csr_int32": Key("compressed rows (CSR), 32-bit indices", SERIES[2]),
    "packed_raw": Key("packed files", SERIES[1]),
    "packed_exponents": Key("packed files with coded exponents", SERIES[4]),
    BOUND: Key("least for random masks and values", SERIES[3], dashed=True),
}
VALUES = {"raw": "float32", "exponents": "coded float32", "fp16": "float16", "int8": "int8"}
"""How agents with rounded values were packed, by the name in the table."""

RETENTION = Chart(
    "dots",
    "retained score, dense = 1",
    alt="Retained score of {} by environment and pruner.",
    share="x",
    mark=1,
)
LEARNING = Chart("lines", "gradient updates", "D4RL score", "D4RL score of {} by updates.", "y")
SPARSITY = Chart("lines", "sparsity in %", "D4RL score", "D4RL score of {} by sparsity.", "xy")
LAYERS = Chart("dots", "weights left", alt="Weights left in each layer of {} by pruner.", share="x", log="X")
MEMORY = Chart("lines", "sparsity in %", "MB", "Megabytes of {} by sparsity and storage format.")
SAVINGS = Chart(
    "bars", "times fewer bytes", alt="How many times fewer bytes than dense tensors each format takes."
)


def highest(rows: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of the highest sparsity; none if nothing was pruned."""
    return rows[(rows["sparsity"] > 0) & (rows["sparsity"] == rows["sparsity"].max())]


def without_repetition(statistics: pandas.DataFrame) -> pandas.DataFrame:
    """The statistics; of one environment, `all` says the same."""
    several = statistics["environment"].nunique() > 2
    return statistics if several else statistics[statistics["environment"] != ALL]


def kept_overall(statistics: pandas.DataFrame) -> list[Row]:
    """What SNIP, or the first pruner there is, keeps at the highest sparsity over all environments."""
    overall = statistics[statistics["environment"] == ALL]
    dense = overall[overall["sparsity"] == 0].set_index("algorithm")["score_iqm"]
    top = highest(overall).dropna(subset="retention")
    shown = "snip" if "snip" in set(top["pruner"]) else next(iter(ordered(top["pruner"], PRUNERS)), "")
    return [
        {
            "algorithm": name(row.algorithm),
            "pruner": name(row.pruner),
            "kept": percent(row.retention),
            "interval": interval(row.retention_low, row.retention_high, percent),
            "dense": number(dense[row.algorithm], 2),
        }
        for row in top[top["pruner"] == shown].itertuples()
    ]


def agents_in_motion(found: Results) -> list[Panel]:
    """A video of each environment and algorithm: agents side by side."""
    panels = []
    for video, path in found.find(f"{results.ANIMATIONS}animation.mp4").items():
        environment, algorithm = video.split("/")[3:5]
        alt = f"{name(algorithm)} agents on {environment} in motion, dense beside pruned and narrow ones."
        still = picture(path.with_name("still.jpg"), alt, f"{name(algorithm)}, {environment}", 480)
        panels.append(replace(still, video=data_uri("video/mp4", path.read_bytes())))
    return panels


def scores_in_motion(statistics: pandas.DataFrame, title: str) -> str:
    """The mean scores of the agents of such a video, by its `title`, in words."""
    top = pandas.concat([statistics[statistics["sparsity"] == 0], highest(statistics)])
    shown = top["algorithm"].map(name) + ", " + top["environment"] == title
    own = top[shown].set_index("pruner")["score_mean"]
    return ", ".join(f"{name(each)} {number(own[each], 2)}" for each in ordered(own.index, PRUNERS))


def densities(found: Results) -> list[Row]:
    """The weights that each part keeps: retention says little if the policy keeps more of them."""
    return [
        {"environment": environment, "algorithm": name(algorithm), "pruner": name(pruner)}
        | {str(part): number(value) for part, value in row.items()}
        for (environment, algorithm, pruner), row in _densities(found).unstack("part").iterrows()
    ]


def only_density(found: Results) -> str:
    """The percentage of its weights that each part keeps; empty if parts differ."""
    once = _densities(found).map(number).unique()
    return str(once[0]) if len(once) == 1 else ""


def _densities(found: Results) -> pandas.Series:
    top = highest(found.table(results.LAYERS))
    counts = top.groupby(["environment", "algorithm", "pruner", "part"], sort=False)
    counts = counts[["weights_kept", "weights_total"]].sum()
    return 100 * counts["weights_kept"] / counts["weights_total"]


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
            "range": interval(row.score_min, row.score_max),
            "IQM": number(row.score_iqm),
            f"IQM, {level}": interval(row.score_iqm_low, row.score_iqm_high),
            "retention": number(row.retention),
            f"retention, {level}": interval(row.retention_low, row.retention_high),
        }
        for row in without_repetition(statistics).itertuples()
    ]


def retention(top: pandas.DataFrame) -> Figure:
    """The share of the dense agents' score that pruned agents keep, by environment; `all` last."""
    bounds = {"retention": "x", "retention_low": "low", "retention_high": "high", "pruner": "series"}
    rows = top.rename(columns=bounds).assign(y=top["environment"].map(_environment))
    rows = rows.sort_values("environment", key=lambda own: own.replace(ALL, "~"), kind="stable")
    return RETENTION.figure(rows, pruner_keys(rows["series"]), ["algorithm"])


def heldout_losses(found: Results) -> list[Row]:
    """The last losses of agents without an environment."""
    losses = found.table(results.HELDOUT)
    kind = ["environment", "algorithm", "pruner", "sparsity", "loss"]
    last = losses[losses["update"] == losses.groupby(kind[:2])["update"].transform("max")]
    return [
        {
            "data": environment,
            "algorithm": name(algorithm),
            "pruner": name(pruner),
            "sparsity": exact_percent(sparsity),
            "loss": loss,
            "seeds": f"{len(values)}",
            "mean": number(values.mean()),
        }
        for (environment, algorithm, pruner, sparsity, loss), values in last.groupby(kind)["value"]
    ]


def learning_curves(found: Results, pruner: str) -> Figure:
    """Mean and range over seeds of the score by gradient updates, dense and at each sparsity of a pruner."""
    scores = found.table(results.SCORES)
    sparsities = sorted(scores.loc[scores["pruner"] == pruner, "sparsity"].unique())
    if not sparsities:
        return Figure([])
    by = ["algorithm", "environment", "sparsity", "update"]
    own = scores[scores["pruner"].isin([DENSE, pruner])].groupby(by)["d4rl_score"]
    rows = own.agg(y="mean", low="min", high="max").reset_index()
    keys = {0.0: Key(DENSE, INK, dashed=True)}
    for i, each in enumerate(sparsities, start=1):
        colour = to_hex(colormaps["viridis_r"](i / len(sparsities)))
        keys[each] = Key(f"{exact_percent(each)} pruned", colour)
    return LEARNING.figure(rows.rename(columns={"update": "x", "sparsity": "series"}), keys, by[:2])


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
        kept = rows.groupby([*columns, "pruner"], sort=False)["weights_kept"]
        kept = kept.agg(x="mean", std="std").fillna(0).reset_index()
        kept = kept.assign(low=(kept["x"] - kept["std"]).clip(lower=0), high=kept["x"] + kept["std"])
        dense = rows.drop_duplicates(columns).rename(columns={"weights_total": "x"}).assign(pruner=DENSE)
        shown = pandas.concat([dense, kept]).rename(columns={"layer": "y", "pruner": "series"})
        yield str(environment), LAYERS.figure(shown, pruner_keys(shown["series"]), columns[:2])


def first_environment(sizes: pandas.DataFrame) -> str:
    """The environment whose networks' bytes are shown, as other environments' differ little; "" if none."""
    return next((model.split("/")[0] for model in sizes["model"]), "")


def table_1(sizes: pandas.DataFrame) -> list[Row]:
    """Table 1: megabytes of BCQ's networks on the first environment, beside the paper's."""
    own = sizes[sizes["model"] == f"{first_environment(sizes)}/bcq"]
    rows: list[Row] = []
    for row in paper.TABLE_1 if len(own) else ():
        chosen = own[(own["pruner"] == row.pruner) & (own["format"] == row.format)]
        chosen = chosen[chosen["sparsity"] == (0.0 if row.pruner == DENSE else paper.HIGHEST_SPARSITY)]
        megabytes = chosen.groupby("network")["bytes"].mean() / 1e6
        for network in ("actor", "critic", "vae"):
            ours, printed = megabytes.get(network, np.nan), getattr(row, network)
            rows.append(
                {
                    "method": row.method,
                    "network": network,
                    "ours, MB": number(ours, 4),
                    "paper, MB": f"{printed:g}",
                    "ours / paper": number(ours / printed),
                }
            )
    return rows


def memory(sizes: pandas.DataFrame) -> Figure:
    """The megabytes of the first environment's networks by sparsity, in each format and at least."""
    own = sizes[sizes["model"].str.startswith(f"{first_environment(sizes)}/")]
    bound = own[own["format"] == DENSE]
    rows = pandas.concat([own, bound.assign(format=BOUND, bytes=bound["entropy_bound_bytes"])])
    rows = rows.assign(algorithm=rows["model"].str.split("/").str[1])
    by = ["algorithm", "network", "format", "sparsity"]
    means = rows[rows["format"].isin(FORMATS)].groupby(by)["bytes"].mean().reset_index()
    shown = means.assign(x=100 * means["sparsity"], y=means["bytes"] / 1e6, series=means["format"])
    return MEMORY.figure(shown, FORMATS, by[:2])


def rounded_values(quantized: pandas.DataFrame) -> list[Row]:
    """Bytes and scores of agents that were packed with fewer bits per value, means over seeds."""
    agents = quantized.groupby(["environment", "algorithm", "pruner", "values"])
    means = agents[["bytes", "d4rl_score"]].mean().unstack("values")
    kinds = {kind: words for kind, words in VALUES.items() if kind in set(quantized["values"])}.items()
    return [
        {"environment": environment, "algorithm": name(algorithm), "pruner": name(pruner)}
        | {f"kB {words}": number(row["bytes", kind] / 1e3) for kind, words in kinds}
        | {f"score {words}": number(row["d4rl_score", kind]) for kind, words in kinds}
        for (environment, algorithm, pruner), row in means.iterrows()
    ]


def savings(rows: pandas.DataFrame) -> pandas.Series:
    """How many times fewer bytes than dense tensors each format takes; also for the entropy bound."""
    total = rows.groupby("format")["bytes"].sum()
    total[BOUND] = rows.loc[rows["format"] == DENSE, "entropy_bound_bytes"].sum()
    return total[DENSE] / total.reindex(FORMATS).dropna()


def smallest(saving: pandas.Series) -> str:
    """The format that takes the fewest bytes, by its :func:`savings`."""
    return str(saving.drop([DENSE, BOUND]).idxmax())


def savings_by_format(saving: pandas.Series) -> Figure:
    """How many times fewer bytes each format takes, from :func:`savings`."""
    names = [fill(FORMATS[each].label.partition(",")[0], 24) for each in saving.index]
    labels = [f"{number(value, 2)}×" for value in saving]
    rows = pandas.DataFrame({"x": saving.to_numpy(), "y": names, "series": "bytes", "label": labels})
    return SAVINGS.figure(rows, {"bytes": Key("bytes", SERIES[0])})
