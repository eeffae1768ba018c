"""Deployment: milliseconds on each runtime, and Hyyppä's experiment and compilers."""

import re
from functools import partial
from textwrap import shorten
from typing import NamedTuple

import numpy as np
import pandas
from matplotlib.axes import Axes
from numpy.typing import NDArray

from tasks.reporting import paper, result_tables
from tasks.reporting.look import (
    CHART_INCHES,
    MUTED,
    OTHER,
    RULE,
    RUNTIMES,
    SERIES,
    Figure,
    Key,
    chart,
    ordered,
)
from tasks.reporting.results import Results
from tasks.reporting.words import NOT_GIVEN, Row, count, number, written_as

BASELINE = "torch"
CONDITION = ["model", "form", "threads", "batch", "size_px"]
"""Columns of the conditions that runtimes are compared under."""
FULL, REDUCED = "float32", "bfloat16"
PREPARATION = {"right": "correctly prepared", "reported": "as in the report"}
SEVERAL = "several alike"
REASON_CHARACTERS = 90
MOST_PANELS = 6
"""Greatest number of panels, one per policy and threads; the table of milliseconds has all policies."""
SEED = re.compile(r"/seed-\d+$")
EXPORTS = {
    ("dense", False): "dense",
    ("masked", False): "pruned, with its zeros",
    ("masked", True): "pruned, sparse initialisers",
    ("compacted", False): "pruned, compacted",
}
"""The kinds of ONNX files: form, and whether initialisers are sparse."""


def read_timings(found: Results) -> pandas.DataFrame:
    """The timings of networks that ran."""
    timings = found.table(result_tables.TIMINGS)
    return timings[timings["status"] == "ok"]


def compacted_pairs(timed: pandas.DataFrame) -> pandas.DataFrame:
    """Medians of policies that were timed both `masked` and `compacted`, in columns of these names."""
    keys = ["model", "runtime", "threads", "batch"]
    wide = _policies(timed).pivot_table("p50_ms", keys, "form").reindex(columns=["masked", "compacted"])
    return wide.dropna().reset_index()


def _policies(timed: pandas.DataFrame) -> pandas.DataFrame:
    return timed[timed["size_px"].isna()]


def zeros_and_compacted(pairs: pandas.DataFrame, states: int) -> Figure:
    """Chart: milliseconds of pruned policies for so many states, with zeros and without their dead units."""
    pairs = pairs[pairs["batch"] == states]
    names = short_names(pairs["model"])
    shown = list(pairs.groupby(["model", "threads"], sort=False))[:MOST_PANELS]
    return Figure(
        [
            chart(
                partial(draw_pairs, pairs=rows),
                f"Milliseconds of {model} on each runtime, with zeros and compacted.",
                f"{names[model]}, {count(int(threads), 'thread')}",
                (CHART_INCHES[0], 0.8 + 0.3 * rows["runtime"].nunique()),
            )
            for (model, threads), rows in shown
        ]
    )


def draw_pairs(axis: Axes, pairs: pandas.DataFrame) -> None:
    """A row for each runtime: from the median with zeros (hollow) to the compacted one (filled)."""
    runtimes = ordered(pairs["runtime"], RUNTIMES)
    own = pairs.set_index("runtime").reindex(runtimes)
    at = range(len(runtimes))
    axis.hlines(at, own["compacted"], own["masked"], color=RULE, linewidth=4)
    for i, runtime in enumerate(runtimes):
        colour = RUNTIMES.get(runtime, OTHER)
        axis.plot(own.loc[runtime, "masked"], i, "o", color=colour, markerfacecolor="white", markersize=6.5)
        axis.plot(own.loc[runtime, "compacted"], i, "o", color=colour, markersize=6.5)
    axis.set_yticks(at, runtimes)
    axis.set_ylim(len(runtimes) - 0.5, -0.5)
    logarithmic(axis, own[["masked", "compacted"]].to_numpy())
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("ms per call (median)")


def exported_bytes(found: Results) -> list[Row]:
    """Sizes of the policies' ONNX files, means over agents."""
    exports = found.table(result_tables.EXPORTS)
    policies = exports[exports["kind"] == "policy"]
    rows = []
    for policy, own in policies.groupby(policies["model"].str.split("/").str[:2].str.join(" ")):
        mean = own.groupby(["form", "sparse_initializers"])["bytes"].mean() / 1e6
        rows += [
            {"policy": str(policy), "file": words, "MB": number(mean[key])}
            for key, words in EXPORTS.items()
            if key in mean.index
        ]
    return rows


def compared(timed: pandas.DataFrame) -> pandas.DataFrame:
    """The timings in full precision."""
    return timed[timed["precision"] == FULL]


def reduced(timed: pandas.DataFrame) -> list[str]:
    """The runtimes of lower precision."""
    return list(timed.loc[timed["precision"] == REDUCED, "runtime"].unique())


def conditions(timed: pandas.DataFrame) -> int:
    """The number of conditions."""
    return timed.groupby(CONDITION, dropna=False).ngroups


def wins(winners: pandas.Series) -> list[str]:
    """In how many conditions each runtime is the fastest."""
    return [f"{runtime} in {n}" for runtime, n in winners.value_counts(sort=True).items()]


def best_means(means: pandas.Series) -> list[str]:
    """The runtimes whose mean speed is written like the highest."""
    return written_as(means.max(), means.to_dict(), 2)


class PolicyGain(NamedTuple):
    """How many times as fast as PyTorch with zeros a runtime answers with pruned policies."""

    runtime: str
    states: int
    """The batch."""
    gains: pandas.Series
    """Without dead units, if these were timed, by model and threads."""
    with_zeros: pandas.Series
    """The same with the zeros left in: the runtime's part of the gain."""


def fastest_policies(timed: pandas.DataFrame) -> PolicyGain | None:
    """The runtime on which pruned policies gain most, in full precision; None without pruned policies.

    For the smallest batch: who acts has one state at a time.
    """
    policies = _policies(timed)
    pruned = policies[(policies["form"] != "dense") & (policies["precision"] == FULL)]
    states = pruned["batch"].min()
    pruned = pruned[pruned["batch"] == states]
    keys = ["runtime", "model", "threads"]
    masked = pruned[pruned["form"] == "masked"].set_index(keys)["p50_ms"]
    zeros = _on(masked, BASELINE)
    gains = (zeros / pruned.groupby(keys)["p50_ms"].min()).dropna()
    if gains.empty:
        return None
    runtime = str(gains.groupby("runtime").agg(geometric_mean).idxmax())
    return PolicyGain(runtime, int(states), _on(gains, runtime), _on((zeros / masked).dropna(), runtime))


def _on(values: pandas.Series, runtime: str) -> pandas.Series:
    """The values of one runtime, by the other levels of the index."""
    return values[values.index.get_level_values("runtime") == runtime].droplevel("runtime")


def winners_of(timed: pandas.DataFrame) -> pandas.Series:
    """For each condition, the runtime with the lowest median; `SEVERAL` if others are written the same."""

    def winner(medians: pandas.Series) -> str:
        best = written_as(medians.min(), medians.to_dict())
        return best[0] if len(best) == 1 else SEVERAL

    return timed.set_index("runtime").groupby(CONDITION, dropna=False)["p50_ms"].apply(winner)


def speedups(timed: pandas.DataFrame) -> pandas.DataFrame:
    """`timed` with a column `speedup`: PyTorch's median over the row's, where PyTorch was timed, too."""
    base = timed[timed["runtime"] == BASELINE].rename(columns={"p50_ms": "base_ms"})[[*CONDITION, "base_ms"]]
    both = timed.merge(base, on=CONDITION)
    return both.assign(speedup=both["base_ms"] / both["p50_ms"])


def geometric_mean(ratios: pandas.Series) -> float:
    """exp of the mean logarithm; NaN without ratios."""
    return float(np.exp(np.log(ratios).mean()))


def mean_speedups(speedup: pandas.DataFrame) -> pandas.Series:
    """Geometric mean of each runtime's :func:`speedups`."""
    return speedup.groupby("runtime")["speedup"].agg(geometric_mean)


def speed_by_runtime(timed: pandas.DataFrame) -> Figure:
    """Chart: how many times as fast as PyTorch each runtime is."""
    speedup = speedups(timed)
    inches = (CHART_INCHES[0], 0.8 + 0.32 * speedup["runtime"].nunique())
    alt = "Speed relative to PyTorch by runtime; the table below has the milliseconds."
    return Figure([chart(partial(draw_speedups, speedup=speedup), alt, "", inches)])


def draw_speedups(axis: Axes, speedup: pandas.DataFrame) -> None:
    """A row for each runtime: a dot for each condition, a bar at the geometric mean with its number."""
    means = mean_speedups(speedup).sort_values(ascending=False)
    for i, (runtime, mean) in enumerate(means.items()):
        own = speedup.loc[speedup["runtime"] == runtime, "speedup"]
        colour = RUNTIMES.get(str(runtime), OTHER)
        axis.plot(own, np.full(len(own), i), "o", color=colour, markersize=5, alpha=0.45, markeredgewidth=0)
        axis.plot([mean], [i], "|", color=colour, markersize=16, markeredgewidth=2.5)
        axis.annotate(
            f"{number(mean, 2)}×", (1.01, i), xycoords=("axes fraction", "data"), va="center", color=MUTED
        )
    axis.axvline(1, color=MUTED, linestyle="--", linewidth=1)
    logarithmic(axis, np.append(speedup["speedup"], 1.0))
    axis.set_yticks(range(len(means)), list(means.index))
    axis.set_ylim(len(means) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("times as fast as PyTorch")


def logarithmic(axis: Axes, values: NDArray[np.float64]) -> None:
    """Give a horizontal axis a logarithmic scale that fits `values`, with ticks at round numbers."""
    low, high = values.min() / 1.5, values.max() * 1.5
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    steps = (1, 2, 5) if high < 100 * low else (1,)
    ticks = [step * 10.0**power for power in range(-5, 6) for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.xaxis.set_minor_formatter("")


def milliseconds(timed: pandas.DataFrame) -> list[Row]:
    """Medians of each network and condition, a column for each runtime."""
    runtimes = ordered(timed["runtime"], RUNTIMES)
    varied = timed["threads"].nunique() > 1
    names = short_names(timed["model"])
    rows = []
    for (model, form, threads, batch, size), own in timed.groupby(CONDITION, dropna=False, sort=False):
        medians = own.set_index("runtime")["p50_ms"].reindex(runtimes)
        given = [f"batch {batch:g}"]
        given += [f"{size:g} px"] if np.isfinite(size) else []
        given += [count(int(threads), "thread")] if varied else []
        cells = {runtime: number(median) for runtime, median in medians.items()}
        rows.append({"network": names[model], "form": form, "input": ", ".join(given), **cells})
    return rows


def short_names(models: pandas.Series) -> dict[str, str]:
    """A short name for each model: without its seed, unless the seed tells models apart."""
    names = {model: SEED.sub("", model) for model in models.unique()}
    return names if len(set(names.values())) == len(names) else {model: model for model in names}


def not_timed(found: Results) -> list[Row]:
    """The runtimes without a time, and why."""
    timings = found.table(result_tables.TIMINGS)
    missing = timings[timings["status"] != "ok"]
    return [
        {
            "runtime": runtime,
            "status": status,
            "reason": shorten(str(reason), REASON_CHARACTERS, placeholder=" …"),
            "rows": f"{len(own)}",
        }
        for (runtime, status, reason), own in missing.groupby(["runtime", "status", "reason"], dropna=False)
    ]


def answers(found: Results) -> pandas.DataFrame:
    """The classifier's answers on each runtime."""
    classified = found.table(result_tables.CLASSIFICATION)
    return classified[classified["status"] == "ok"]


def reference(answers: pandas.DataFrame) -> pandas.DataFrame:
    """PyTorch's answers, or those of the first runtime if PyTorch has none."""
    own = answers[answers["runtime"] == BASELINE]
    return own if len(own) else answers[answers["runtime"] == answers["runtime"].iloc[0]]


def probable_classes(answers: pandas.DataFrame) -> Figure:
    """Chart: the five most probable classes of each photo."""
    panels = [
        chart(
            partial(draw_answers, rows=rows),
            f"Probabilities of five classes for photo {photo}, {PREPARATION[str(how)]}.",
            f"{photo}, {PREPARATION[str(how)]}",
            (3.5, 1.75),
        )
        for (photo, how), rows in answers.groupby(["photo", "preprocessing"], sort=False)
    ]
    keys = [Key(PREPARATION[how], colour) for how, colour in zip(PREPARATION, SERIES, strict=False)]
    return Figure(panels, keys)


def draw_answers(axis: Axes, rows: pandas.DataFrame) -> None:
    """Draw bars of probabilities, the most probable class on top."""
    colours = dict(zip(PREPARATION, SERIES, strict=False))
    own = rows.sort_values("rank")
    at = np.arange(len(own))
    bars = axis.barh(at, own["probability"], color=own["preprocessing"].map(colours), height=0.62)
    axis.bar_label(bars, [number(value, 2) for value in own["probability"]], padding=3, color=MUTED)
    axis.set_yticks(at, [shorten(label, 22, placeholder=" …") for label in own["label"]])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.12)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("probability")


def most_probable(answers: pandas.DataFrame) -> list[Row]:
    """The most probable class of each photo, and the runtimes whose five classes are not PyTorch's."""
    first = answers[answers["rank"] == 1]
    rows = []
    for (photo, how), own in first.groupby(["photo", "preprocessing"], sort=False):
        others = own[~own["same_top5_as_torch"].astype(bool)]
        low, high = number(own["probability"].min()), number(own["probability"].max())
        rows.append(
            {
                "photo": photo,
                "preparation": PREPARATION[how],
                "most probable": reference(own)["label"].iloc[0],
                "probability": low if low == high else f"{low} to {high}",
                "other five classes than PyTorch on": ", ".join(
                    f"{row.runtime} ({row.label})" for row in others.itertuples()
                )
                or "none",
            }
        )
    return rows


def compilers(found: Results) -> list[Row]:
    """The compilers that the report describes, their successors, and what else was timed."""
    timings = found.table(result_tables.TIMINGS)
    named = {runtime: compiler for compiler in paper.COMPILERS for runtime in compiler.runtimes}
    means = mean_speedups(speedups(read_timings(found)))
    rows: list[Row] = []
    if timings.empty:
        return rows
    for runtime in [*named, *(r for r in ordered(timings["runtime"], RUNTIMES) if r not in named)]:
        own = timings[timings["runtime"] == runtime]
        ran = own[own["status"] == "ok"]
        compiler = named.get(runtime)
        rows.append(
            {
                "the report's (section)": f"{compiler.name} ({compiler.section})"
                if compiler
                else "not in the report",
                "successor": compiler.successor if compiler else NOT_GIVEN,
                "runtime here": runtime,
                "version": ", ".join(sorted(ran["version"].dropna().astype(str).unique())) or NOT_GIVEN,
                "timed": _status(own, ran),
                "× PyTorch": number(means.get(runtime, np.nan)),
                "largest error": number(ran["max_rel_error"].max(), 2) if len(ran) else NOT_GIVEN,
            }
        )
    return rows


def _status(own: pandas.DataFrame, ran: pandas.DataFrame) -> str:
    if own.empty:
        return "not in this profile"
    return f"{len(ran)} of {len(own)}" if len(ran) else str(own["status"].iloc[0])
