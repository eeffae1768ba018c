"""Deployment: milliseconds on each runtime, and Hyyppä's experiment and compilers."""

from textwrap import shorten

import numpy as np
import pandas
from scipy.stats import gmean

from tasks.reporting import paper, results
from tasks.reporting.look import INK, SERIES, Chart, Figure, Key, name
from tasks.reporting.results import Results
from tasks.reporting.words import NOT_GIVEN, Row, count, exact_percent, number, pace

BASELINE = "torch"
CONDITION = ["model", "form", "threads", "batch", "size_px"]
"""Columns of the conditions that runtimes are compared under."""
PREPARATION = {"right": Key("correctly prepared", SERIES[0]), "reported": Key("as in the report", SERIES[1])}
REASON_CHARACTERS = 90
MOST_PANELS = 6
"""Greatest number of panels, one per policy and threads; the table of milliseconds has all policies."""
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
SPEEDS = {"condition": Key("a network in a condition", SERIES[5]), "mean": Key("geometric mean", INK)}


def read_timings(found: Results) -> pandas.DataFrame:
    """The timings of networks that ran."""
    timings = found.table(results.TIMINGS)
    return timings[timings["status"] == "ok"]


def compacted_pairs(timed: pandas.DataFrame) -> pandas.DataFrame:
    """Medians of policies that were timed both `masked` and `compacted`, and the `gain` by the latter."""
    keys = ["model", "runtime", "threads", "batch"]
    policies = timed[timed["size_px"].isna()]  # whose input has no side
    wide = policies.pivot_table("p50_ms", keys, "form", sort=False).reindex(columns=list(FORMS)).dropna()
    return wide.assign(gain=wide["masked"] / wide["compacted"]).reset_index()


def zeros_and_compacted(pairs: pandas.DataFrame) -> Figure:
    """Milliseconds of pruned policies for the fewest states, with zeros and without their dead units."""
    rows = pairs[pairs["batch"] == pairs["batch"].min()]
    threads = [count(int(n), "thread") for n in rows["threads"]]
    rows = rows.assign(threads=threads, y=rows["runtime"], model=rows["model"].map(_policy))
    shown = rows[["model", "threads"]].drop_duplicates().head(MOST_PANELS)
    long = rows.merge(shown).melt(["model", "threads", "y"], list(FORMS), "series", "x")
    return PAIRS.figure(long, FORMS, ["model", "threads"])


def _policy(model: str) -> str:
    environment, algorithm, variant, seed = model.rsplit("/", 3)
    pruner, _, sparsity = variant.rpartition("-")
    pruned = f"{name(pruner)} {exact_percent(float(sparsity))}"
    return f"{environment}, {name(algorithm)}, {pruned}, {seed.replace('-', ' ')}"


def speedups(timed: pandas.DataFrame) -> pandas.DataFrame:
    """`timed` with a column `speedup`: PyTorch's median over the row's, where PyTorch was timed, too."""
    base = timed[timed["runtime"] == BASELINE].rename(columns={"p50_ms": "base_ms"})[[*CONDITION, "base_ms"]]
    both = timed.merge(base, on=CONDITION)
    return both.assign(speedup=both["base_ms"] / both["p50_ms"])


def mean_speedups(timed: pandas.DataFrame) -> pandas.Series:
    """Geometric mean of each runtime's :func:`speedups`, the fastest first."""
    return speedups(timed).groupby("runtime")["speedup"].agg(gmean).sort_values(ascending=False)


def speed_by_runtime(timed: pandas.DataFrame) -> Figure:
    """How many times as fast as PyTorch each runtime is: a dot for each condition, and one for the mean."""
    labels = {runtime: f"{runtime}, {pace(mean)}" for runtime, mean in mean_speedups(timed).items()}
    means = pandas.DataFrame({"x": mean_speedups(timed), "y": labels, "series": "mean"})
    dots = speedups(timed).rename(columns={"speedup": "x"}).assign(series="condition")
    dots = dots.assign(y=dots["runtime"].map(labels))
    # The means come first, as rows are drawn in their order.
    return SPEEDUPS.figure(pandas.concat([means, dots[["x", "y", "series"]]]), SPEEDS)


def milliseconds(timed: pandas.DataFrame) -> list[Row]:
    """Medians of each network and condition, a column for each runtime."""
    runtimes = timed["runtime"].unique()
    rows = []
    for (model, form, threads, batch, size), own in timed.groupby(CONDITION, dropna=False, sort=False):
        medians = own.set_index("runtime")["p50_ms"].reindex(runtimes)
        side = f", {size:g} px" if np.isfinite(size) else ""
        given = f"batch {batch:g}{side}, {count(int(threads), 'thread')}"
        cells = {runtime: number(median) for runtime, median in medians.items()}
        rows.append({"network": model, "form": form, "input": given, **cells})
    return rows


def answers(found: Results) -> pandas.DataFrame:
    """The classifier's answers on each runtime."""
    classified = found.table(results.CLASSIFICATION)
    return classified[classified["status"] == "ok"]


def probable_classes(answers: pandas.DataFrame) -> Figure:
    """The five most probable classes of each photo, on PyTorch."""
    rows = answers[answers["runtime"] == BASELINE].sort_values("rank", kind="stable")
    rows = rows.assign(
        preparation=[PREPARATION[how].label for how in rows["preprocessing"]],
        x=rows["probability"],
        y=[shorten(str(label), 22, placeholder=" …") for label in rows["label"]],
        label=[number(value, 2) for value in rows["probability"]],
        series=rows["preprocessing"],
    )
    return ANSWERS.figure(rows, PREPARATION, ["photo", "preparation"])


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
                "preparation": PREPARATION[how].label,
                "most probable": own["label"].iloc[0],
                "probability": " to ".join(bounds),
                "other five classes than PyTorch on": ", ".join(others["runtime"]) or "none",
            }
        )
    return rows


def compilers(found: Results) -> list[Row]:
    """Each runtime, the compiler in the report that it succeeds, and if it was not timed, why."""
    timings = found.table(results.TIMINGS)
    named = {runtime: compiler for compiler in paper.COMPILERS for runtime in compiler.runtimes}
    means = mean_speedups(read_timings(found))
    rows: list[Row] = []
    for runtime in dict.fromkeys([*named, *timings["runtime"]]) if len(timings) else ():
        own = timings[timings["runtime"] == runtime]
        ran = own[own["status"] == "ok"]
        others = own[own["status"] != "ok"][["status", "reason"]].drop_duplicates()
        reasons = "; ".join(f"{row.status}: {row.reason}" for row in others.itertuples())
        compiler = named.get(runtime, paper.Compiler("not in the report", NOT_GIVEN, ()))
        rows.append(
            {
                "the report's (section)": compiler.name,
                "successor": compiler.successor,
                "runtime here": runtime,
                "version": ", ".join(sorted(ran["version"].dropna().astype(str).unique())) or NOT_GIVEN,
                "timed": f"{len(ran)} of {len(own)}",
                "beside PyTorch": pace(means.get(runtime, np.nan)),
                "largest error": number(ran["max_rel_error"].max(), 2),
                "not timed": shorten(reasons, REASON_CHARACTERS, placeholder=" …") or NOT_GIVEN,
            }
        )
    return rows
