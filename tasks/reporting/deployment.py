"""Deployment: milliseconds on each runtime, and Hyyppä's experiment and compilers."""

import re
from textwrap import shorten

import numpy as np
import pandas

from tasks.reporting import paper, results
from tasks.reporting.look import INK, RUNTIMES, SERIES, Chart, Figure, Key, ordered
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
PAIRS = Chart("dots", "ms per call (median)", alt="Milliseconds of {} on each runtime.", log="x")
SPEEDUPS = Chart(
    "dots",
    "times as fast as PyTorch",
    alt="Speed relative to PyTorch by runtime; the table has milliseconds.",
    log="x",
    mark=1,
)
ANSWERS = Chart("bars", "probability", alt="Probabilities of five classes for photo {}.")
FORMS = {"masked": Key("with zeros", SERIES[1]), "compacted": Key("without dead units", SERIES[0])}


def read_timings(found: Results) -> pandas.DataFrame:
    """The timings of networks that ran."""
    timings = found.table(results.TIMINGS)
    return timings[timings["status"] == "ok"]


def policies(timed: pandas.DataFrame) -> pandas.DataFrame:
    """The timings of policies, whose input has no side."""
    return timed[timed["size_px"].isna()]


def compacted_pairs(timed: pandas.DataFrame) -> pandas.DataFrame:
    """Medians of policies that were timed both `masked` and `compacted`, in columns of these names."""
    keys = ["model", "runtime", "threads", "batch"]
    wide = policies(timed).pivot_table("p50_ms", keys, "form").reindex(columns=["masked", "compacted"])
    return wide.dropna().reset_index()


def zeros_and_compacted(pairs: pandas.DataFrame, states: int) -> Figure:
    """Milliseconds of pruned policies for so many states, with zeros and without their dead units."""
    rows = pairs[pairs["batch"] == states]
    names = short_names(rows["model"])
    order = ordered(rows["runtime"], RUNTIMES)
    rows = rows.assign(
        policy=rows["model"].map(names),
        threads=[count(int(n), "thread") for n in rows["threads"]],
        y=rows["runtime"],
    ).sort_values("y", key=lambda runtimes: runtimes.map(order.index))
    shown = rows[["policy", "threads"]].drop_duplicates().head(MOST_PANELS)
    long = rows.merge(shown).melt(["policy", "threads", "y"], list(FORMS), "series", "x")
    return PAIRS.figure(long, FORMS, ["policy", "threads"])


def exported_bytes(found: Results) -> list[Row]:
    """Sizes of the policies' ONNX files, means over agents."""
    exports = found.table(results.EXPORTS)
    policies = exports[exports["kind"] == "policy"]
    agents = policies["model"].str.split("/").str[:2].str.join(" ")
    mean = policies.groupby([agents, "form", "sparse_initializers"])["bytes"].mean() / 1e6
    return [
        {"policy": policy, "file": words, "MB": number(mean[policy, *key])}
        for policy in agents.drop_duplicates().sort_values()
        for key, words in EXPORTS.items()
        if (policy, *key) in mean.index
    ]


def wins(winners: pandas.Series) -> list[str]:
    """In how many conditions each runtime is the fastest."""
    return [f"{runtime} in {n}" for runtime, n in winners.value_counts(sort=True).items()]


def best_means(means: pandas.Series) -> list[str]:
    """The runtimes whose mean speed is written like the highest."""
    return written_as(means.max(), means.to_dict(), 2)


def fastest_policies(timed: pandas.DataFrame) -> tuple[str, int, pandas.Series] | None:
    """The runtime on which pruned policies gain most over PyTorch with zeros, in full precision, if any.

    With the smallest batch, as who acts has one state at a time, and the gains by model and threads.
    """
    own = policies(timed)
    pruned = own[(own["form"] != "dense") & (own["precision"] == FULL)]
    states = pruned["batch"].min()
    pruned = pruned[pruned["batch"] == states]
    keys = ["runtime", "model", "threads"]
    zeros = pruned[(pruned["form"] == "masked") & (pruned["runtime"] == BASELINE)].set_index(keys[1:])[
        "p50_ms"
    ]
    gains = (zeros / pruned.groupby(keys)["p50_ms"].min()).dropna()
    if gains.empty:
        return None
    runtime = str(gains.groupby("runtime").agg(geometric_mean).idxmax())
    return runtime, int(states), gains[gains.index.get_level_values("runtime") == runtime]


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
    """How many times as fast as PyTorch each runtime is: a dot for each condition, a bar at the mean."""
    speedup = speedups(timed)
    means = mean_speedups(speedup).sort_values(ascending=False)
    labels = {runtime: f"{runtime}, {number(mean, 2)}×" for runtime, mean in means.items()}
    dots = speedup.assign(x=speedup["speedup"], y=speedup["runtime"].map(labels), series="condition")
    bars = pandas.DataFrame({"x": means.to_numpy(), "y": list(labels.values()), "series": "mean"})
    # The means come first, as rows are drawn in their order.
    rows = pandas.concat([bars, dots[["x", "y", "series"]]])
    keys = {
        "condition": Key("a network in a condition", SERIES[5]),
        "mean": Key("geometric mean", INK, marker="|"),
    }
    return SPEEDUPS.figure(rows, keys)


def milliseconds(timed: pandas.DataFrame) -> list[Row]:
    """Medians of each network and condition, a column for each runtime."""
    runtimes = ordered(timed["runtime"], RUNTIMES)
    names = short_names(timed["model"])
    rows = []
    for (model, form, threads, batch, size), own in timed.groupby(CONDITION, dropna=False, sort=False):
        medians = own.set_index("runtime")["p50_ms"].reindex(runtimes)
        side = f", {size:g} px" if np.isfinite(size) else ""
        given = f"batch {batch:g}{side}, {count(int(threads), 'thread')}"
        cells = {runtime: number(median) for runtime, median in medians.items()}
        rows.append({"network": names[model], "form": form, "input": given, **cells})
    return rows


def short_names(models: pandas.Series) -> dict[str, str]:
    """A short name for each model: without its seed, unless the seed tells models apart."""
    names = {model: SEED.sub("", model) for model in models.unique()}
    return names if len(set(names.values())) == len(names) else {model: model for model in names}


def not_timed(found: Results) -> list[Row]:
    """The runtimes without a time, and why."""
    timings = found.table(results.TIMINGS)
    missing = timings[timings["status"] != "ok"].groupby(["runtime", "status", "reason"], dropna=False)
    return [
        {
            "runtime": runtime,
            "status": status,
            "reason": shorten(str(reason), REASON_CHARACTERS, placeholder=" …"),
            "rows": f"{len(own)}",
        }
        for (runtime, status, reason), own in missing
    ]


def answers(found: Results) -> pandas.DataFrame:
    """The classifier's answers on each runtime."""
    classified = found.table(results.CLASSIFICATION)
    return classified[classified["status"] == "ok"]


def reference(answers: pandas.DataFrame) -> pandas.DataFrame:
    """PyTorch's answers, or those of the first runtime if PyTorch has none."""
    own = answers[answers["runtime"] == BASELINE]
    return own if len(own) else answers[answers["runtime"] == answers["runtime"].iloc[0]]


def probable_classes(answers: pandas.DataFrame) -> Figure:
    """The five most probable classes of each photo."""
    rows = answers.sort_values("rank", kind="stable")
    rows = rows.assign(
        preparation=rows["preprocessing"].map(PREPARATION),
        x=rows["probability"],
        y=[shorten(str(label), 22, placeholder=" …") for label in rows["label"]],
        label=[number(value, 2) for value in rows["probability"]],
        series=rows["preprocessing"],
    )
    keys = {
        how: Key(words, colour) for (how, words), colour in zip(PREPARATION.items(), SERIES, strict=False)
    }
    return ANSWERS.figure(rows, keys, ["photo", "preparation"])


def most_probable(answers: pandas.DataFrame) -> list[Row]:
    """The most probable class of each photo, and the runtimes whose five classes are not PyTorch's."""
    first = answers[answers["rank"] == 1]
    rows = []
    for (photo, how), own in first.groupby(["photo", "preprocessing"], sort=False):
        others = own[~own["same_top5_as_torch"].astype(bool)]
        bounds = {number(own["probability"].min()): None, number(own["probability"].max()): None}
        rows.append(
            {
                "photo": photo,
                "preparation": PREPARATION[how],
                "most probable": reference(own)["label"].iloc[0],
                "probability": " to ".join(bounds),
                "other five classes than PyTorch on": ", ".join(others["runtime"]) or "none",
            }
        )
    return rows


def compilers(found: Results) -> list[Row]:
    """The compilers that the report describes, their successors, and what else was timed."""
    timings = found.table(results.TIMINGS)
    named = {runtime: compiler for compiler in paper.COMPILERS for runtime in compiler.runtimes}
    others = [runtime for runtime in ordered(timings["runtime"], RUNTIMES) if runtime not in named]
    means = mean_speedups(speedups(read_timings(found)))
    rows: list[Row] = []
    for runtime in [*named, *others] if len(timings) else ():
        own = timings[timings["runtime"] == runtime]
        ran = own[own["status"] == "ok"]
        compiler = named.get(runtime)
        status = own["status"].iloc[0] if len(own) else "not in this profile"
        rows.append(
            {
                "the report's (section)": f"{compiler.name} ({compiler.section})"
                if compiler
                else "not in the report",
                "successor": compiler.successor if compiler else NOT_GIVEN,
                "runtime here": runtime,
                "version": ", ".join(sorted(ran["version"].dropna().astype(str).unique())) or NOT_GIVEN,
                "timed": f"{len(ran)} of {len(own)}" if len(ran) else status,
                "× PyTorch": number(means.get(runtime, np.nan)),
                "largest error": number(ran["max_rel_error"].max(), 2) if len(ran) else NOT_GIVEN,
            }
        )
    return rows
