"""Task: latencies of deployed networks as bar charts, from the benchmark's `timings.csv`.

The columns that are read are `model`, `form`, `runtime`, `threads`, `batch`, `size_px` (empty for policies),
`status` (`ok`, `failed` or `unavailable`), `reason` (why the status is not `ok`), `p50_ms` and `p99_ms`.
"""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pandas
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasks.job import Event, Job, Metrics, per_job
from tasks.reporting.look import save_png

LOG_SCALE_FROM = 20
"""Ratio of the slowest to the fastest median beyond which some bars of a linear scale are too short."""
PANEL_INCHES = 7
NOTE_CHARACTERS = 130
"""Length of a line of notes below a single panel."""
REASON_CHARACTERS = 160
WHY = ["runtime", "status", "reason"]
CONDITIONS = ["form", "threads", "inputs"]
"""Columns of the conditions that a runtime is timed under; `inputs` is the batch and size in words."""


@per_job
def draw_deployment_figures(job: Job) -> Iterator[Event]:
    """Draw a job's `timings`, a `timings.csv`: a figure for each model, e.g. `hopper-bcq-dense-seed-0.png`.

    The metric `figures` is the number of figures.
    """
    timings = pandas.read_csv(job.inputs["timings"])
    models = timings.groupby("model", sort=False)
    for model, rows in models:
        figure = draw_latencies(str(model), rows)
        save_png(figure, job.params.profile, job.output / f"{str(model).replace('/', '-').lower()}.png")
    yield Metrics(0, {"figures": float(len(models))})


def draw_latencies(model: str, rows: pandas.DataFrame) -> Figure:
    """Draw a panel for each form of the network and number of threads; name runtimes without a time below."""
    rows = rows.assign(inputs=_inputs(rows), threads=rows["threads"].map(_threads))
    timed = rows[rows["status"] == "ok"]
    forms, threads, inputs = (list(dict.fromkeys(rows[column])) for column in CONDITIONS)
    runtimes = list(dict.fromkeys(timed["runtime"]))
    figure, axes = pyplot.subplots(
        len(forms),
        len(threads),
        figsize=(max(4.5 * len(threads), PANEL_INCHES), 2.7 * len(forms) + 1.5),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for axis, (form, count) in zip(axes.flat, product(forms, threads), strict=True):
        panel = timed[(timed["form"] == form) & (timed["threads"] == count)]
        _draw_bars(axis, panel, runtimes, inputs)
        axis.set_title(f"{form}, {count}", fontsize=10)
        axis.label_outer()
    if timed["p50_ms"].max() > LOG_SCALE_FROM * timed["p50_ms"].min():
        axes[0, 0].set_yscale("log")  # of all panels, which share this axis
        axes[0, 0].yaxis.set_major_formatter("{x:g}")
    for axis in axes[:, 0]:
        axis.set_ylabel("ms a call: p50, whisker p99", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.suptitle(model)
    width = int(NOTE_CHARACTERS * figure.get_figwidth() / PANEL_INCHES)
    notes = [textwrap.fill(note, width, subsequent_indent="    ") for note in _notes(rows)]
    figure.supxlabel("\n".join(notes), x=0.01, ha="left", fontsize=7)
    return figure


def _draw_bars(axis: Axes, panel: pandas.DataFrame, runtimes: Sequence[str], inputs: Sequence[str]) -> None:
    width = 0.8 / len(inputs)
    for i, each in enumerate(inputs):
        group = panel[panel["inputs"] == each].set_index("runtime").reindex(runtimes)
        positions = np.arange(len(runtimes)) + (i - (len(inputs) - 1) / 2) * width
        whiskers = [np.zeros(len(group)), group["p99_ms"] - group["p50_ms"]]
        colour = pyplot.get_cmap("viridis")((i + 0.5) / len(inputs))
        axis.bar(
            positions,
            group["p50_ms"],
            width,
            yerr=whiskers,
            color=colour,
            label=each,
            error_kw={"elinewidth": 1, "ecolor": "0.4", "capsize": 2},
        )
    axis.set_xticks(range(len(runtimes)), runtimes, rotation=30, ha="right")
    axis.grid(axis="y", alpha=0.3)


def _inputs(rows: pandas.DataFrame) -> list[str]:
    """Batch and size in words, whichever varies, e.g. `batch 8` or `512 px`; the batch if neither varies."""
    named = {"batch": "batch {:g}", "size_px": "{:g} px"}
    varied = [column for column in named if rows[column].nunique() > 1] or ["batch"]
    return [", ".join(named[c].format(row[c]) for c in varied) for _, row in rows[varied].iterrows()]


def _notes(rows: pandas.DataFrame) -> Iterator[str]:
    """Each runtime without a time, with the conditions if it was timed under others, and the reason."""
    missing = rows[rows["status"] != "ok"]
    for (runtime, status, reason), group in missing.groupby(WHY, sort=False, dropna=False):
        where = _where(group[CONDITIONS], rows.loc[rows["runtime"] == runtime, CONDITIONS])
        short = textwrap.shorten(str(reason), REASON_CHARACTERS, placeholder=" …")
        yield f"{runtime}{where}: {status}, {short}"


def _where(some: pandas.DataFrame, every: pandas.DataFrame) -> str:
    """Name what distinguishes some conditions from the others, e.g. ` (batch 256)`; empty without others."""
    if len(some) == some.nunique().prod():  # all combinations of certain values: name these values
        told = [column for column in CONDITIONS if some[column].nunique() < every[column].nunique()]
        return f" ({'; '.join(', '.join(some[column].unique()) for column in told)})" if told else ""
    return f" ({'; '.join(', '.join(each) for each in some.itertuples(index=False))})"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
