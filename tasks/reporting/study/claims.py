"""Each claim of Arnob et al. (2021), what the study found, and the verdict that its interval allows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import pandas

from tasks.reporting.look import name
from tasks.reporting.statistics import Array, BootstrapConfig, difference
from tasks.reporting.study.comparison import (
    NETWORK,
    PART,
    Estimate,
    Group,
    compare,
    gained,
    gained_beyond_dense,
    is_main,
    retained,
)

Verdict = Literal["holds", "does not hold", "undecided", "too few seeds"]
PERFORMS = "Agents with 95 % of their weights pruned perform like dense ones"
EXCEPTION = "BCQ agents on Hopper with 95 % of their weights pruned perform worse than dense ones"
NORMALIZED = "With normalised states, agents with 95 % of their weights pruned perform like dense ones"
LAST_LAYER = "GraSP keeps more of a network's last layer than SNIP"
BYTES = "Networks with 95 % of their weights pruned take 4 times fewer bytes"
CHOICE = "A pruner's choice of weights within a layer raises the score"
BUDGET = "A pruner's distribution of weights over layers raises the score"
SCALES = "Normalised states help agents with 95 % of their weights pruned more than dense ones"
LAST_OF = {"actor": "actor", "critic": "critic", "vae": "VAE's decoder"}
"""The networks whose last layers are compared, in words."""
OPPOSITE: Mapping[Verdict, Verdict] = {"holds": "does not hold", "does not hold": "holds"}
RETAINED = 0.9
"""Retention above which agents count as performing like dense ones. The paper names no number."""
LAST_LAYERS = ("pi.2", "q1.2", "q2.2", "decoder.2")
FOUR_TIMES = 3.95
"""Least factor that counts as the paper's "4x": it rounds to 4.0."""
DENSE_BYTES, COO_BYTES = 4, 20
"""Bytes of a weight: of its value; in a COO tensor from `torch.to_sparse()`, also of two 64-bit indices."""
PRUNERS = ("snip", "grasp")


@dataclass(frozen=True)
class Claim:
    """A claim about some of the agents, with what was found."""

    claim: str
    measured: str
    """Quantity that `estimate` estimates."""
    agents: str
    """Task and algorithm of the agents."""
    masks: str
    """Pruner and scope of their masks."""
    estimate: Estimate
    verdict: Verdict


def all_claims(agents: pandas.DataFrame, layers: pandas.DataFrame, bootstrap: BootstrapConfig) -> list[Claim]:
    """Every claim for which there are agents.

    `agents` are :func:`~tasks.reporting.study.comparison.final_scores`, `layers` a study's layers.csv.
    """
    main = layers[is_main(layers) & (layers["sparsity"] == 0.95)]
    return [
        *_performance_is_kept(agents, bootstrap),
        *_grasp_keeps_more_of_last_layers(main, bootstrap),
        *_bytes_are_saved(main, bootstrap),
        *_weights_or_budget(agents, bootstrap),
        *_scales_of_states(agents, bootstrap),
    ]


def _performance_is_kept(agents: pandas.DataFrame, bootstrap: BootstrapConfig) -> Iterator[Claim]:
    """Section 4: "for all the experiments, except for BCQ in Hopper task, the performance is consistent even
    with 95% sparse networks"."""
    for task, group in _groups(agents):
        estimate = retained(agents, group, [task], bootstrap)
        if not estimate:
            continue
        exception = (task, group.algorithm) == ("Hopper", "bcq")
        claim = NORMALIZED if group.normalize_states else EXCEPTION if exception else PERFORMS
        side = "below" if exception else "above"
        measured = f"share of the dense agents' score that they keep; the claim holds {side} {RETAINED}"
        verdict = exceeds(estimate, RETAINED)
        if exception:
            verdict = OPPOSITE.get(verdict, verdict)
        yield Claim(claim, measured, *_words(task, group), estimate, verdict)


def _weights_or_budget(agents: pandas.DataFrame, bootstrap: BootstrapConfig) -> Iterator[Claim]:
    """Section 4: "The pruning techniques can find the sub-networks" that perform. Is it the choice of weights
    within a layer that matters, or their distribution over layers?"""
    for task, group in _groups(agents):
        shuffled, random = (
            replace(group, pruner=control) for control in (f"{group.pruner}-shuffled", "random")
        )
        for claim, own, other, masks in (
            (CHOICE, group, shuffled, "its masks score more than the same masks, shuffled"),
            (BUDGET, shuffled, random, "its shuffled masks score more than uniformly random ones"),
        ):
            estimate = gained(agents, own, other, [task], bootstrap)
            if estimate:
                measured = f"D4RL points by which {masks}"
                yield Claim(claim, measured, *_words(task, group), estimate, exceeds(estimate, 0))


def _scales_of_states(agents: pandas.DataFrame, bootstrap: BootstrapConfig) -> Iterator[Claim]:
    """Not a claim of the paper, which prunes with raw states: with these, |w ∂L/∂w| in a first layer grows
    with the layer's inputs. Shuffled masks are the control."""
    measured = "D4RL points that they gain with normalised states, minus the gain of dense agents"
    for task, group in _groups(agents):
        if group.normalize_states:
            continue
        for own in (group, replace(group, pruner=f"{group.pruner}-shuffled")):
            estimate = gained_beyond_dense(agents, own, [task], bootstrap)
            if estimate:
                yield Claim(SCALES, measured, *_words(task, own), estimate, exceeds(estimate, 0))


def _groups(agents: pandas.DataFrame) -> Iterator[tuple[str, Group]]:
    """Each task with each group whose masks a pruner made, on raw and on normalised states."""
    for normalized, algorithm in product((False, True), sorted(agents["algorithm"].unique())):
        for task, scope, pruner in product(sorted(agents["task"].unique()), (PART, NETWORK), PRUNERS):
            yield task, Group(algorithm, pruner, scope, normalize_states=normalized)


def _words(task: str, group: Group) -> tuple[str, str]:
    states = ", normalised states" if group.normalize_states else ""
    return f"{task}, {name(group.algorithm)}{states}", f"{name(group.pruner)}, scope {group.scope}"


def _grasp_keeps_more_of_last_layers(layers: pandas.DataFrame, bootstrap: BootstrapConfig) -> Iterator[Claim]:
    """Section 4.2 and Figure 3: both preserve more weights of the last layer, GraSP more than SNIP.

    The VAEs of BC and BCQ have the same masks, since the same loss prunes them, so they are counted once.
    """
    last = layers[layers["layer"].isin(LAST_LAYERS)]
    last = last.drop_duplicates(["network", "layer", "task", "pruner", "seed"])
    for network, rows in last.groupby("network"):
        kept = {pruner: _density(rows[rows["pruner"] == pruner]) for pruner in PRUNERS}
        seeds = sorted(set(kept["snip"].columns) & set(kept["grasp"].columns))
        tables = [100 * kept[pruner][seeds].to_numpy() for pruner in ("grasp", "snip")]
        estimate = compare(difference, tables, bootstrap)
        if estimate:
            yield Claim(
                LAST_LAYER,
                "percentage of its weights that GraSP keeps, minus SNIP's, in percentage points",
                "all tasks",
                f"{LAST_OF[str(network)]}, scope {PART}",
                estimate,
                exceeds(estimate, 0),
            )


def _bytes_are_saved(layers: pandas.DataFrame, bootstrap: BootstrapConfig) -> Iterator[Claim]:
    """Section 4.3: "For 95% sparsity, we are able to reduce the memory size to 4x", with sparse tensors."""

    def times_fewer(density: Array) -> Array:
        return (DENSE_BYTES / (COO_BYTES * density)).mean(axis=(-2, -1))

    for pruner in PRUNERS:
        density = _density(layers[layers["pruner"] == pruner])
        estimate = compare(times_fewer, [density.to_numpy()], bootstrap)
        if estimate:
            yield Claim(
                BYTES,
                "how many times fewer bytes the weights take as sparse COO tensors; the claim holds above "
                f"{FOUR_TIMES}, which rounds to 4.0",
                "all tasks, algorithms and networks",
                f"{name(pruner)}, scope {PART}",
                estimate,
                exceeds(estimate, FOUR_TIMES),
            )


def _density(layers: pandas.DataFrame) -> pandas.DataFrame:
    """Fraction of the weights that is kept: one row per task, one column per seed that all tasks have."""
    counts = layers.groupby(["task", "seed"])[["weights_kept", "weights_total"]].sum()
    return (counts["weights_kept"] / counts["weights_total"]).unstack("seed").dropna(axis=1)


def exceeds(estimate: Estimate, threshold: float) -> Verdict:
    """Whether the whole interval is above `threshold`; `undecided` if the interval contains it."""
    if not estimate.interval:
        return "too few seeds"
    low, high = estimate.interval
    if low > threshold:
        return "holds"
    return "does not hold" if high < threshold else "undecided"
