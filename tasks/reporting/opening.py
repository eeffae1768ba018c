"""The page's first screen: agents in motion, and what pruning kept, saved in bytes, and gained in speed."""

from collections.abc import Iterator

import pandas

from tasks.reporting import results
from tasks.reporting.blocks import Headline, Opening, Panel, count, exact_percent, listing, number, percent
from tasks.reporting.look import PRUNERS, name, ordered
from tasks.reporting.results import Results
from tasks.reporting.section_deployment import fastest_policies
from tasks.reporting.section_pruning import ALL, FORMAT_NAMES, agents_in_motion, highest, savings, smallest
from tasks.reporting.section_style import before_and_after

PREFERRED = "snip"
"""Pruner of the first number, if it was run."""
UNTRAINED = 10
"""D4RL score below which dense agents have hardly learned, so that a share of their score says nothing."""


def opening(found: Results) -> Opening:
    """Make the first screen from the results that exist. There are no placeholders for missing results."""
    panel, caption = _shown(found)
    return Opening(panel, caption, [*_kept(found), *_smaller(found), *_faster(found)])


def _shown(found: Results) -> tuple[Panel | None, str]:
    if panels := agents_in_motion(found):
        return panels[0], "Agents in real time, dense and pruned before training, from the same start"
    if panels := before_and_after(found):
        return panels[0], "Photos before (left) and after stylisation by a trained network (right)"
    return None, ""


def _kept(found: Results) -> Iterator[Headline]:
    """The share of the dense agents' score that each algorithm keeps at one pruner's highest sparsity."""
    statistics = found.table(results.STATISTICS)
    rows = highest(statistics)
    if rows.empty:
        return
    pruners = ordered(rows["pruner"], PRUNERS)
    pruner = PREFERRED if PREFERRED in pruners else pruners[0]
    rows = rows[(rows["pruner"] == pruner) & (rows["environment"] == ALL) & rows["retention"].notna()]
    if rows.empty:
        return
    bounds = rows[["retention_low", "retention_high"]]
    interval = f"{count(int(rows['seeds'].min()), 'seed')}: no confidence interval"
    if bounds.notna().all(axis=None):
        each = [f"{percent(low)} to {percent(high)}" for low, high in bounds.to_numpy()]
        interval = f"{exact_percent(found.confidence)} interval{'s' * (len(each) > 1)} {listing(each)}"
    dense = statistics.loc[(statistics["sparsity"] == 0) & (statistics["environment"] == ALL), "score_iqm"]
    if dense.min() < UNTRAINED:
        interval = (
            f"says nothing yet: after so few updates, dense agents score {number(dense.min(), 2)} of 100"
        )
    what = (
        f"of the dense agents' score is kept by {listing(map(name, rows['algorithm']))} agents when "
        f"{name(pruner)} prunes {exact_percent(rows['sparsity'].max())} of their weights before training"
    )
    yield Headline(listing(map(percent, rows["retention"])), interval, what, "return")


def _smaller(found: Results) -> Iterator[Headline]:
    """How many times fewer bytes the pruned networks take in the smallest format that keeps every bit."""
    sizes = highest(found.table(results.SIZES))
    if sizes.empty:
        return
    saving = savings(sizes)
    best = smallest(saving)
    what = f"smaller: the file of such an agent's networks, as {FORMAT_NAMES.get(best, best)}, every bit kept"
    yield Headline(f"{number(saving[best], 2)}×", _range(saving.drop(best), "in other formats"), what, "cost")


def _faster(found: Results) -> Iterator[Headline]:
    """How much faster a pruned policy acts on the best runtime than in PyTorch."""
    fastest = fastest_policies(found)
    if fastest is None:
        return
    runtime, mean, gains = fastest
    what = f"faster: a pruned policy on {runtime}, the best runtime, beside PyTorch with zeros for weights"
    yield Headline(f"{number(mean, 2)}×", _range(gains, "by batch and threads"), what, "compilers")


def _range(values: pandas.Series, by: str) -> str:
    """The lowest and the highest value."""
    low, high = number(values.min(), 2), number(values.max(), 2)
    return "" if low == high else f"{low}× to {high}× {by}"
