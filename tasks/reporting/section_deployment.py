"""Deployment: the page's answers on milliseconds and compilers, and Hyyppä's experiment and compilers."""

import re
from collections.abc import Iterator
from functools import partial
from textwrap import shorten

import numpy as np
import pandas
from matplotlib.axes import Axes
from numpy.typing import NDArray

from tasks.reporting import paper, results
from tasks.reporting.blocks import (
    NOT_GIVEN,
    Block,
    Figure,
    Key,
    Section,
    Table,
    Text,
    count,
    listing,
    number,
    written_as,
)
from tasks.reporting.look import CHART_INCHES, MUTED, OTHER, RULE, RUNTIMES, SERIES, chart, ordered
from tasks.reporting.results import Results

BASELINE = "torch"
CONDITION = ["model", "form", "threads", "batch", "size_px"]
"""Columns of the conditions that runtimes are compared under."""
FULL, REDUCED = "float32", "bfloat16"
PREPARATION = {"right": "correctly prepared", "reported": "as in the report"}
ACTOR = "/actor"
"""Suffix of the name of an actor that was timed without the rest of its policy."""
KEPT_WEIGHTS = "numba-sparse"
"""The runtime to which zeros cost nothing, whether the network is compacted or not."""
SEVERAL = "several alike"
REASON_CHARACTERS = 90
MOST_PANELS = 6
"""Greatest number of panels, one per policy and threads; the table of milliseconds has all policies."""
SEED = re.compile(rf"/seed-\d+(?={ACTOR}$|$)")


def milliseconds_of_agents(found: Results) -> tuple[str, list[Block]]:
    """A sentence on the milliseconds that removing dead units saves, and its figure."""
    timed = _timed(found)
    actors = _actors(timed)
    every = compacted_pairs(timed)
    pairs = every[every["runtime"] != KEPT_WEIGHTS]
    if pairs.empty:
        missing = "Milliseconds of pruned policies, with zeros and compacted"
        return "", [results.not_run(missing, results.TIMINGS), *actors]
    ratio = geometric_mean(pairs["masked"] / pairs["compacted"])
    sentence = (
        f"without the units that pruning left dead, a policy answers {number(ratio, 2)} times as fast as "
        f"with zeros (geometric mean of {count(len(pairs), 'pair')} of timings)"
    )
    states = int(pairs["batch"].min())
    least = every[every["batch"] == states]
    names = short_names(least["model"])
    shown = list(least.groupby(["model", "threads"], sort=False))[:MOST_PANELS]
    figure = Figure(
        f"Milliseconds (median, logarithmic) that a pruned policy takes for {count(states, 'state')}, with "
        "its zeros (hollow) and without its dead units (filled)",
        [
            chart(
                partial(draw_pairs, pairs=rows),
                f"Milliseconds of {model} on each runtime, with zeros and compacted.",
                f"{names[model]}, {count(int(threads), 'thread')}",
                (CHART_INCHES[0], 0.8 + 0.3 * rows["runtime"].nunique()),
            )
            for (model, threads), rows in shown
        ],
        data=results.TIMINGS.path,
    )
    return sentence, [figure, *actors]


def _actors(timed: pandas.DataFrame) -> list[Block]:
    """A table of BCQ actors alone, each compared with PyTorch and all of the actor's zeros."""
    faster = {"onnxruntime": "onnxruntime, compacted", KEPT_WEIGHTS: "kept weights alone"}
    columns = ("actor", "threads", "states", "PyTorch with zeros, ms", *faster.values())
    keys = [("masked", BASELINE), *(("compacted", name) for name in faster)]
    actors = timed[timed["model"].str.endswith(ACTOR)]
    wide = actors.pivot_table("p50_ms", ["model", "threads", "batch"], ["form", "runtime"])
    wide = wide.reindex(columns=keys).dropna(subset=keys[:1])
    if wide.empty:
        return []
    rows = []
    for (model, threads, batch), (zeros, *times) in zip(wide.index, wide.to_numpy(), strict=True):
        ratios = [number(zeros / time, 2) for time in times]
        rows.append((model.removesuffix(ACTOR), str(threads), str(batch), number(zeros, 3), *ratios))
    caption = (
        "The actor alone, an MLP with 400 and 300 hidden units, from its packed file: how many times as fast "
        f"as PyTorch with zeros. “Kept weights alone” is `{KEPT_WEIGHTS}` with the compacted actor"
    )
    return [Table(caption, columns, rows, numbers=columns[1:], data=results.TIMINGS.path)]


def compacted_pairs(timed: pandas.DataFrame) -> pandas.DataFrame:
    """Medians of policies that were timed both `masked` and `compacted`, in columns of these names."""
    keys = ["model", "runtime", "threads", "batch"]
    policies = timed["size_px"].isna() & ~timed["model"].str.endswith(ACTOR)
    wide = timed[policies].pivot_table("p50_ms", keys, "form").reindex(columns=["masked", "compacted"])
    return wide.dropna().reset_index()


def exported_bytes(found: Results) -> Iterator[Block]:
    """A table of the sizes of policies' ONNX files, means over agents."""
    exports = found.table(results.EXPORTS)
    policies = exports[exports["kind"] == "policy"]
    if policies.empty:
        yield results.not_run("Bytes of ONNX files", results.EXPORTS)
        return
    names = {
        ("dense", False): "dense",
        ("masked", False): "pruned, with its zeros",
        ("masked", True): "pruned, sparse initialisers",
        ("compacted", False): "pruned, compacted",
    }
    environment_and_algorithm = policies["model"].str.split("/").str[:2].str.join(" ")
    rows = []
    for policy, own in policies.groupby(environment_and_algorithm):
        mean = own.groupby(["form", "sparse_initializers"])["bytes"].mean() / 1e6
        rows += [(policy, words, number(mean[key])) for key, words in names.items() if key in mean.index]
    yield Table(
        "Megabytes of the policies' ONNX files, mean over agents",
        ("policy", "file", "MB"),
        rows,
        numbers=("MB",),
        data=results.EXPORTS.path,
    )


def which_compiler_is_fastest(found: Results) -> Section:
    """Section `compilers`, from the benchmark's medians."""
    title = "Which compiler is fastest?"
    timed = _timed(found)
    if timed.empty:
        missing = results.not_run("Latency on each runtime", results.TIMINGS)
        return Section("compilers", title, "Not known: no network was timed.", [missing])
    if BASELINE not in set(timed["runtime"]):
        unknown = "Not known: PyTorch, the baseline for the others, was not timed."
        return Section("compilers", title, unknown, [_milliseconds(timed)], [*_not_timed(found)])
    speedup = speedups(timed)
    conditions = timed.groupby(CONDITION, dropna=False).ngroups
    figure = Figure(
        "How many times as fast as PyTorch each runtime is: a dot for each network, form, batch, size and "
        f"number of threads ({count(conditions, 'condition')}); the bar is their geometric mean",
        [
            chart(
                partial(draw_speedups, speedup=speedup),
                "Speed relative to PyTorch by runtime; the table below has the milliseconds.",
                "",
                (CHART_INCHES[0], 0.8 + 0.32 * speedup["runtime"].nunique()),
            )
        ],
        data=results.TIMINGS.path,
    )
    return Section("compilers", title, _fastest(timed), [figure, _milliseconds(timed)], [*_not_timed(found)])


def _timed(found: Results) -> pandas.DataFrame:
    timings = found.table(results.TIMINGS)
    return timings[timings["status"] == "ok"]


def _fastest(timed: pandas.DataFrame) -> str:
    # The runtime that takes only pruned networks is not one of the compilers that are compared here.
    full = timed[(timed["precision"] == FULL) & (timed["runtime"] != KEPT_WEIGHTS)]
    winners = winners_of(full)
    wins = [f"{runtime} in {n}" for runtime, n in winners.value_counts(sort=True).items()]
    clauses = [f"In {FULL}, the fastest runtime is {listing(wins)} of {count(len(winners), 'condition')}"]
    means = mean_speedups(speedups(timed)).reindex(sorted(set(timed["runtime"])))
    of_full = means[means.index.isin(full["runtime"])]
    best = listing(written_as(of_full.max(), of_full.to_dict(), 2))
    clauses.append(f"the highest mean speed is that of {best}, {number(of_full.max(), 2)} times PyTorch's")
    others = dict.fromkeys(timed.loc[timed["precision"] == REDUCED, "runtime"], "at lower precision")
    if KEPT_WEIGHTS in means:
        others[KEPT_WEIGHTS] = "which takes only pruned networks"
    clauses += [f"{each}, {why}, has {number(means[each], 2)} times" for each, why in others.items()]
    return "; ".join(clauses) + ". Means are geometric."


def fastest_policies(found: Results) -> tuple[str, float, pandas.Series] | None:
    """The runtime on which pruned policies gain most over PyTorch with zeros, in full precision.

    Returns its name, the geometric mean of its gains, and each gain; None if no pruned policy was timed.
    """
    timed = _timed(found)
    policies = timed["size_px"].isna() & ~timed["model"].str.endswith(ACTOR) & (timed["form"] != "dense")
    pruned = timed[policies & (timed["precision"] == FULL)]
    keys = ["model", "threads", "batch"]
    zeros = pruned[(pruned["runtime"] == BASELINE) & (pruned["form"] == "masked")].set_index(keys)["p50_ms"]
    best = pruned.groupby(["runtime", *keys])["p50_ms"].min()
    gains = (zeros / best).dropna()
    if gains.empty:
        return None
    means = gains.groupby("runtime").agg(geometric_mean)
    runtime = str(means.idxmax())
    return runtime, float(means.max()), gains.xs(runtime, level="runtime")


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


def _milliseconds(timed: pandas.DataFrame) -> Table:
    runtimes = ordered(timed["runtime"], RUNTIMES)
    varied = timed["threads"].nunique() > 1
    names = short_names(timed["model"])
    rows = []
    for (model, form, threads, batch, size), own in timed.groupby(CONDITION, dropna=False, sort=False):
        medians = own.set_index("runtime")["p50_ms"].reindex(runtimes)
        given = [f"batch {batch:g}"]
        given += [f"{size:g} px"] if np.isfinite(size) else []
        given += [count(int(threads), "thread")] if varied else []
        rows.append((names[model], form, ", ".join(given), *(number(value) for value in medians)))
    head = ("network", "form", "input", *runtimes)
    caption = "Milliseconds per call (median) on each runtime; – where it was not timed"
    return Table(caption, head, rows, numbers=runtimes, data=results.TIMINGS.path)


def short_names(models: pandas.Series) -> dict[str, str]:
    """A short name for each model: without its seed, unless the seed tells models apart."""
    names = {model: SEED.sub("", model) for model in models.unique()}
    return names if len(set(names.values())) == len(names) else {model: model for model in names}


def _not_timed(found: Results) -> Iterator[Block]:
    timings = found.table(results.TIMINGS)
    missing = timings[timings["status"] != "ok"]
    if len(missing):
        rows = [
            (runtime, status, shorten(str(reason), REASON_CHARACTERS, placeholder=" …"), f"{len(own)}")
            for (runtime, status, reason), own in missing.groupby(
                ["runtime", "status", "reason"], dropna=False
            )
        ]
        yield Table(
            "Runtimes without a time, and why",
            ("runtime", "status", "reason", "rows"),
            rows,
            numbers=("rows",),
            data=results.TIMINGS.path,
        )


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


def hyyppa(found: Results) -> Section:
    """Section `hyyppa`: the report's experiment, and its compilers with their present successors."""
    blocks = [*_experiment(found), _compilers(found)]
    return Section(
        "hyyppa", "Deployment: Hyyppä’s experiment and compilers", paper.HYYPPA.citation + ".", blocks
    )


def _experiment(found: Results) -> Iterator[Block]:
    answers = found.table(results.CLASSIFICATION)
    answers = answers[answers["status"] == "ok"]
    of = f"{paper.HYYPPA.name}, section 4"
    printed = listing([f"{e.picture} is a {e.label} ({number(e.output, 4)})" for e in paper.EXPERIMENT])
    yield Text(
        f"The report converts ResNet50 from PyTorch to TensorFlow through ONNX and prints: {printed}. These "
        "are outputs before a softmax, of another network and for pictures that are not available, so there "
        "is no ratio to ours. The report's script turns pictures on their sides and normalises every channel "
        "with the red channel's mean and deviation; our photos were classified both with this preparation "
        "and with the correct one."
    )
    if answers.empty:
        yield results.not_run("A classifier's answers on each runtime", results.CLASSIFICATION, of)
        return
    reference = answers[answers["runtime"] == BASELINE]
    reference = reference if len(reference) else answers[answers["runtime"] == answers["runtime"].iloc[0]]
    yield Figure(
        f"The five most probable classes of each photo, on {reference['runtime'].iloc[0]}: correctly "
        "prepared, and prepared as by the report's script",
        [
            chart(
                partial(draw_answers, rows=rows),
                f"Probabilities of five classes for photo {photo}, {PREPARATION[str(how)]}.",
                f"{photo}, {PREPARATION[str(how)]}",
                (3.5, 1.75),
            )
            for (photo, how), rows in reference.groupby(["photo", "preprocessing"], sort=False)
        ],
        [Key(PREPARATION[how], colour) for how, colour in zip(PREPARATION, SERIES, strict=False)],
        of,
        data=results.CLASSIFICATION.path,
    )
    first = answers[answers["rank"] == 1]
    rows = []
    for (photo, how), own in first.groupby(["photo", "preprocessing"], sort=False):
        said = reference[(reference["photo"] == photo) & (reference["preprocessing"] == how)].iloc[0]
        others = own[~own["same_top5_as_torch"].astype(bool)]
        low, high = number(own["probability"].min()), number(own["probability"].max())
        rows.append(
            (
                photo,
                PREPARATION[how],
                said["label"],
                low if low == high else f"{low} to {high}",
                ", ".join(f"{row.runtime} ({row.label})" for row in others.itertuples()) or "none",
            )
        )
    yield Table(
        "The most probable class of each photo, and its probability on "
        f"{listing(ordered(first['runtime'], RUNTIMES))}",
        ("photo", "preparation", "most probable", "probability", "other five classes than PyTorch on"),
        rows,
        of,
        ("probability",),
        data=results.CLASSIFICATION.path,
    )


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


def _compilers(found: Results) -> Block:
    timings = found.table(results.TIMINGS)
    of = f"{paper.HYYPPA.name}, sections 2.5 and 3"
    if timings.empty:
        return results.not_run("The compilers that the report describes, timed", results.TIMINGS, of)
    named = {runtime: compiler for compiler in paper.COMPILERS for runtime in compiler.runtimes}
    means = mean_speedups(speedups(_timed(found)))
    rows = []
    for runtime in [*named, *(r for r in ordered(timings["runtime"], RUNTIMES) if r not in named)]:
        own = timings[timings["runtime"] == runtime]
        timed = own[own["status"] == "ok"]
        compiler = named.get(runtime)
        rows.append(
            (
                f"{compiler.name} ({compiler.section})" if compiler else "not in the report",
                compiler.successor if compiler else NOT_GIVEN,
                runtime,
                ", ".join(sorted(timed["version"].dropna().astype(str).unique())) or NOT_GIVEN,
                _status(own, timed),
                number(means.get(runtime, np.nan)),
                number(timed["max_rel_error"].max(), 2) if len(timed) else NOT_GIVEN,
            )
        )
    return Table(
        "The compilers that the report describes, and their successors. It timed none, so there is no ratio",
        (
            "the report's (section)",
            "successor",
            "runtime here",
            "version",
            "timed",
            "× PyTorch",
            "largest error",
        ),
        rows,
        of,
        ("× PyTorch", "largest error"),
        data=results.TIMINGS.path,
    )


def _status(own: pandas.DataFrame, timed: pandas.DataFrame) -> str:
    if own.empty:
        return "not in this profile"
    return f"{len(timed)} of {len(own)}" if len(timed) else str(own["status"].iloc[0])
