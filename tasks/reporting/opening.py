"""The page's first screen: agents in motion, and a number for each of the three reports with its interval."""

from collections.abc import Callable, Iterator

import numpy as np
import pandas

from tasks.reporting import results
from tasks.reporting.blocks import Headline, Opening, Panel, count, exact_percent, number, percent
from tasks.reporting.look import PRUNERS, name, ordered
from tasks.reporting.results import Results
from tasks.reporting.section_deployment import fastest_speedups
from tasks.reporting.section_pruning import ALL, agents_in_motion
from tasks.reporting.section_style import before_and_after, style_ratios

PREFERRED = ("bcq", "snip")
"""Algorithm and pruner of the first number, if they were run; the paper is about both."""


def opening(found: Results) -> Opening:
    """Make the first screen from the results that exist. There are no placeholders for missing results."""
    panel, caption = _shown(found)
    return Opening(panel, caption, [*_return(found), *_speed(found), *_style(found)])


def _shown(found: Results) -> tuple[Panel | None, str]:
    if panels := agents_in_motion(found):
        return panels[0], "Agents in real time, dense and pruned before training, from the same start"
    if panels := before_and_after(found):
        return panels[0], "Photos before (left) and after stylisation by a trained network (right)"
    return None, ""


def _return(found: Results) -> Iterator[Headline]:
    """The share of the score that agents of one algorithm keep at the highest sparsity of one pruner."""
    statistics = found.table(results.STATISTICS)
    rows = statistics[statistics["sparsity"] > 0]
    if rows.empty:
        return
    rows = rows[rows["sparsity"] == rows["sparsity"].max()]
    algorithm = PREFERRED[0] if PREFERRED[0] in set(rows["algorithm"]) else rows["algorithm"].iloc[0]
    rows = rows[rows["algorithm"] == algorithm]
    pruners = ordered(rows["pruner"], PRUNERS)
    pruner = PREFERRED[1] if PREFERRED[1] in pruners else pruners[0]
    rows = rows[rows["pruner"] == pruner]
    (row,), tasks = rows[rows["task"] == ALL].to_dict("records"), rows[rows["task"] != ALL]
    if not np.isfinite(row["retention"]):
        return
    bounds = [row["retention_low"], row["retention_high"]]
    interval = f"{exact_percent(found.confidence)} interval {' to '.join(map(percent, bounds))}"
    if not np.isfinite(bounds).all():
        seeds = count(int(tasks["seeds"].min()), "seed")
        interval = f"{_range(tasks['retention'], percent, 'task')}; {seeds}: no confidence interval"
    what = (
        f"of the dense agents' score is kept by {name(algorithm)} agents when {name(pruner)} prunes "
        f"{exact_percent(row['sparsity'])} of their weights before training"
    )
    yield Headline(percent(row["retention"]), interval, what, "return")


def _speed(found: Results) -> Iterator[Headline]:
    """How much faster than PyTorch the fastest runtime is."""
    fastest = fastest_speedups(found)
    if fastest is None:
        return
    runtime, mean, speedups = fastest
    interval = _range(speedups, lambda speedup: number(speedup, 2), "condition")
    what = f"the speed of PyTorch is reached by {runtime}, the fastest runtime in full precision"
    yield Headline(f"{number(mean, 2)}×", interval, what, "compilers")


def _style(found: Results) -> Iterator[Headline]:
    """The share of the distance to the painting that trained networks leave."""
    ratios = style_ratios(found)
    if ratios.empty:
        return
    interval = _range(ratios, percent, "picture")
    what = "of a photo's squared distance to the painting's style, by AlexNet, is left by trained networks"
    yield Headline(percent(ratios.mean()), interval, what, "styles")


def _range(values: pandas.Series, written: Callable[[float], str], what: str) -> str:
    """The lowest and the highest value, and the number of `what`; no range for a single value."""
    over = count(len(values), what)
    return over if len(values) == 1 else f"{written(values.min())} to {written(values.max())} over {over}"
