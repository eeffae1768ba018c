"""The claims of Arnob et al. (2021) and this project's own, with the verdicts that the study allows."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import pandas

from tasks.reporting.look import name
from tasks.reporting.statistics import MIN_SEEDS, Paired, holm, mean_interval, paired
from tasks.reporting.study.comparison import ENVIRONMENT, NETWORK, PART, Group, Study

Verdict = Literal["holds", "does not hold", "undecided", "too few seeds"]
PRUNERS = ("snip", "grasp")
OWN_ALGORITHMS = ("bc", "bcq")
"""The algorithms of the paper's experiments."""
RETAINED = 0.9
"""Retention above which agents count as performing like dense ones. The paper names no number."""
LAST_LAYERS = ("pi.2", "q1.2", "q2.2", "decoder.2")
LAST_OF = {"actor": "actor", "critic": "critic", "vae": "VAE's decoder"}
"""The networks whose last layers are compared, in words."""
FOUR_TIMES = 3.95
"""Least factor that counts as the paper's "4x": it rounds to 4.0."""
DENSE_BYTES, COO_BYTES = 4, 20
"""Bytes of a weight: of its value; in a COO tensor from `torch.to_sparse()`, also of two 64-bit indices."""


@dataclass(frozen=True)
class Entry:
    """A claim about some of the agents, with what was found."""

    agents: str
    """Environment and algorithm of the agents, and their number of updates if it is not the usual one."""
    normalize_states: bool
    masks: str
    """Pruner and scope of their masks."""
    draws: str
    estimate: Paired
    p_holm: float | None = None
    """The p-value by t, adjusted by Holm over the claim's table."""
    bootstrap_p_holm: float | None = None
    verdict: Verdict = "too few seeds"
    environment: str = "all environments"
    updates: int = 0
    """Number of updates, if it is not the usual one."""


@dataclass(frozen=True)
class Claim:
    """A claim, and how it is tested: an estimate for each kind of agents and masks, and a threshold."""

    sentence: str
    measured: str
    """Quantity that is estimated."""
    whose: Literal["paper", "ours"]
    find: Callable[[Study], Iterable[Entry]]
    threshold: float = 0
    below: bool = False
    """Whether the claim holds below the threshold instead of above it."""

    def entries(self, study: Study) -> list[Entry]:
        """Every estimate that there is, with its verdict."""
        found = list(self.find(study))
        adjusted = adjusted_p_values([entry.estimate for entry in found])
        return [
            entry if own is None else self._judged(entry, *own, 1 - study.bootstrap.confidence)
            for entry, own in zip(found, adjusted, strict=True)
        ]

    def _judged(self, entry: Entry, p: float, bootstrap_p: float, level: float) -> Entry:
        verdict: Verdict = "undecided"
        if max(p, bootstrap_p) < level:
            below = entry.estimate.value < self.threshold
            verdict = "holds" if below == self.below else "does not hold"
        return replace(entry, p_holm=p, bootstrap_p_holm=bootstrap_p, verdict=verdict)


def adjusted_p_values(estimates: Sequence[Paired]) -> list[tuple[float, float] | None]:
    """The p-values by t and by the bootstrap, adjusted by Holm over a table; None where there are none."""
    tested = [
        (own.p, own.bootstrap_p) for own in estimates if own.p is not None and own.bootstrap_p is not None
    ]
    adjusted = iter(list(zip(*(holm(kind) for kind in zip(*tested, strict=True)), strict=True)))
    return [None if own.p is None else next(adjusted) for own in estimates]


def _groups(study: Study) -> Iterator[Group]:
    """Every kind of agents whose masks SNIP or GraSP made, of every length and on both kinds of states."""
    for algorithm, environment in product(study.each("algorithm"), study.each(ENVIRONMENT)):
        own = study.agents[study.agents["algorithm"] == algorithm]
        seeds = own.groupby("updates")["seed"].nunique()
        lengths = seeds.index[(seeds >= MIN_SEEDS) | (seeds.index == study.usual_updates[algorithm])]
        for updates, batch_size, normalized, scope, pruner in product(
            lengths,
            sorted(own["batch_size"].unique(), key=int),
            (False, True),
            (PART, NETWORK),
            PRUNERS,
        ):
            yield Group(
                environment,
                algorithm,
                pruner,
                normalized,
                updates=int(updates),
                batch_size=int(batch_size),
                scope=scope,
            )


def _entry(study: Study, own: Group, estimate: Paired | None, masks: str = "") -> Iterator[Entry]:
    """What was found about a group, if anything."""
    if estimate:
        longer = own.updates if own.updates != study.usual_updates[own.algorithm] else 0
        unusual = f", {longer:,} updates" if longer else ""
        if own.batch_size != study.usual_batch_sizes[own.algorithm]:
            unusual += f", batches of {own.batch_size}"
        yield Entry(
            agents=f"{own.environment}, {name(own.algorithm)}{unusual}",
            normalize_states=own.normalize_states,
            masks=masks or f"{name(own.pruner)}, scope {own.scope}",
            draws=own.draws,
            estimate=estimate,
            environment=own.environment,
            updates=longer or 0,
        )


def _retention(study: Study, exception: bool) -> Iterator[Entry]:
    """Section 4: "for all the experiments, except for BCQ in Hopper task, the performance is consistent even
    with 95% sparse networks"."""
    for group in _groups(study):
        is_exception = (group.environment, group.algorithm) == ("Hopper", "bcq")
        if group.algorithm in OWN_ALGORITHMS and is_exception == exception:
            yield from _kept(study, group)


def _retention_of_others(study: Study) -> Iterator[Entry]:
    """Section 4: "we expect these pruning methods to perform the same for other Offline-RL
    algorithms as well"."""
    for group in _groups(study):
        if group.algorithm not in OWN_ALGORITHMS:
            yield from _kept(study, group)


def _kept(study: Study, group: Group) -> Iterator[Entry]:
    """The share of the dense agents' score that a group keeps."""
    own, _ = study.on_best_draws([group, group.dense()])
    yield from _entry(study, own, study.compare(own, study.dense_of(own), ratio=True, threshold=RETAINED))


def _with_pruners(study: Study, better: str, worse: str) -> Iterator[Entry]:
    """Differences between two kinds of masks; `{}` in their names stands for SNIP or GraSP."""
    for group in _groups(study):
        own, other = study.on_best_draws(
            [replace(group, pruner=each.format(group.pruner)) for each in (better, worse)]
        )
        masks = f"{name(group.pruner)}, scope {group.scope}"
        yield from _entry(study, own, study.compare(own, other), masks)


def _masks_of_normalized_states(study: Study) -> Iterator[Entry]:
    for group in _groups(study):
        if not group.normalize_states:
            own, other = study.on_best_draws([replace(group, pruning_normalize_states=True), group])
            yield from _entry(study, own, study.compare(own, other))


def _gain_by_normalization(study: Study) -> Iterator[Entry]:
    """Not a claim of the paper. With raw states, |w ∂L/∂w| in a first layer grows with the layer's inputs."""
    for group in _groups(study):
        if group.normalize_states:
            continue
        for own in (group, replace(group, pruner=f"{group.pruner}-shuffled")):
            kinds = study.on_best_draws(
                [
                    replace(each, normalize_states=value)
                    for each in (own, own.dense())
                    for value in (True, False)
                ]
            )
            columns = pandas.concat([study.scores(each) for each in kinds], axis=1, join="inner").to_numpy().T
            if columns.size:
                pruned, raw_pruned, dense, raw_dense = columns
                gain = paired(pruned - raw_pruned, dense - raw_dense, study.bootstrap)
                yield from _entry(study, kinds[0], gain)


def _last_layers(study: Study) -> Iterator[Entry]:
    """Section 4.2 and Figure 3: both preserve more weights of the last layer, GraSP more than SNIP.

    The VAEs of BC and BCQ have the same masks, since the same loss prunes them, so they are counted once.
    """
    for normalized in (False, True):
        layers = study.main_layers(normalized)
        last = layers[layers["layer"].isin(LAST_LAYERS) & layers["algorithm"].isin(OWN_ALGORITHMS)]
        last = last.drop_duplicates(["network", "layer", ENVIRONMENT, "pruner", "seed"])
        for network, rows in last.groupby("network"):
            densities = [_density(rows[rows["pruner"] == pruner]) for pruner in ("grasp", "snip")]
            grasp, snip = pandas.concat(densities, axis=1, join="inner").to_numpy().T
            if len(grasp):
                estimate = paired(100 * grasp, 100 * snip, study.bootstrap)
                yield Entry("all", normalized, f"{LAST_OF[str(network)]}, scope {PART}", "", estimate)


def _bytes(study: Study) -> Iterator[Entry]:
    """Section 4.3: "For 95% sparsity, we are able to reduce the memory size to 4x", with sparse tensors."""
    for normalized, pruner in product((False, True), PRUNERS):
        layers = study.main_layers(normalized)
        density = _density(layers[(layers["pruner"] == pruner) & layers["algorithm"].isin(OWN_ALGORITHMS)])
        if len(density):
            times_fewer = DENSE_BYTES / (COO_BYTES * density.to_numpy())
            estimate = mean_interval(times_fewer, study.bootstrap, threshold=FOUR_TIMES)
            yield Entry("all", normalized, f"{name(pruner)}, scope {PART}", "", estimate)


def _density(layers: pandas.DataFrame) -> "pandas.Series[float]":
    """Fraction of the weights that is kept by seed: the mean over environments, of seeds that all have."""
    counts = layers.groupby([ENVIRONMENT, "seed"])[["weights_kept", "weights_total"]].sum()
    return (counts["weights_kept"] / counts["weights_total"]).unstack("seed").dropna(axis=1).mean()


KEPT = "share of the dense agents' score that pruned agents keep"
CLAIMS: dict[str, Claim] = {
    "performs": Claim(
        "Agents with 95 % of their weights pruned perform like dense ones",
        f"{KEPT}; the claim holds above {RETAINED}",
        "paper",
        lambda study: _retention(study, exception=False),
        RETAINED,
    ),
    "others": Claim(
        "TD3+BC and IQL agents with 95 % of their weights pruned perform like dense ones",
        f"{KEPT}; the claim holds above {RETAINED}",
        "paper",
        _retention_of_others,
        RETAINED,
    ),
    "exception": Claim(
        "BCQ agents on Hopper with 95 % of their weights pruned perform worse than dense ones",
        f"{KEPT}; the claim holds below {RETAINED}",
        "paper",
        lambda study: _retention(study, exception=True),
        RETAINED,
        below=True,
    ),
    "last layer": Claim(
        "GraSP keeps more of a network's last layer than SNIP",
        "percentage of its weights that GraSP keeps, minus SNIP's, in percentage points",
        "paper",
        _last_layers,
    ),
    "bytes": Claim(
        "Networks with 95 % of their weights pruned take 4 times fewer bytes",
        "how many times fewer bytes the weights take as sparse COO tensors; the claim holds above "
        f"{FOUR_TIMES}, which rounds to 4.0",
        "paper",
        _bytes,
        FOUR_TIMES,
    ),
    "scales": Claim(
        "Normalised states help agents with 95 % of their weights pruned more than dense ones",
        "D4RL points that they gain with normalised states, minus the gain of dense agents",
        "ours",
        _gain_by_normalization,
    ),
    "budget": Claim(
        "A pruner's distribution of weights over layers raises the score",
        "D4RL points by which its shuffled masks score more than uniformly random ones",
        "ours",
        lambda study: _with_pruners(study, "{}-shuffled", "random"),
    ),
    "choice": Claim(
        "A pruner's choice of weights within a layer raises the score",
        "D4RL points by which its masks score more than the same masks, shuffled",
        "ours",
        lambda study: _with_pruners(study, "{}", "{}-shuffled"),
    ),
    "first layers": Claim(
        "Shuffling the masks of the layers that read the state, and no others, raises the score",
        "D4RL points by which such masks score more than the pruner's",
        "ours",
        lambda study: _with_pruners(study, "{}-shuffled-first", "{}"),
    ),
    "other layers": Claim(
        "Shuffling the masks of all layers but those that read the state raises the score",
        "D4RL points by which such masks score more than the pruner's",
        "ours",
        lambda study: _with_pruners(study, "{}-shuffled-rest", "{}"),
    ),
    "blind": Claim(
        "Dense agents that are as blind to the state as pruned ones score less than dense agents",
        "D4RL points by which dense agents score more than dense ones that read only what the mask reads",
        "ours",
        lambda study: _with_pruners(study, "dense", "{}-blind"),
    ),
    "scored states": Claim(
        "Masks that are scored on normalised states raise the score of agents that train on raw ones",
        "D4RL points by which they score more than masks that are scored on raw states",
        "ours",
        _masks_of_normalized_states,
    ),
}
"""The claims by a short name: those of the paper, then ours."""


@dataclass(frozen=True)
class ClaimRow:
    """A row of claims.csv: an entry of a claim's table, with both intervals and p-values."""

    claim: str
    whose: str
    measured: str
    agents: str
    normalize_states: bool
    masks: str
    draws: str
    value: float
    seeds: int
    low: float | None
    high: float | None
    bootstrap_low: float | None
    bootstrap_high: float | None
    p: float | None
    bootstrap_p: float | None
    p_holm: float | None
    bootstrap_p_holm: float | None
    verdict: str


def claim_rows(found: Mapping[str, Sequence[Entry]]) -> Iterator[ClaimRow]:
    """The rows of claims.csv from each claim's entries."""
    for key, entries in found.items():
        claim = CLAIMS[key]
        for entry in entries:
            yield ClaimRow(
                claim=claim.sentence,
                whose=claim.whose,
                measured=claim.measured,
                agents=entry.agents,
                normalize_states=entry.normalize_states,
                masks=entry.masks,
                draws=entry.draws,
                **dataclasses.asdict(entry.estimate),
                p_holm=entry.p_holm,
                bootstrap_p_holm=entry.bootstrap_p_holm,
                verdict=entry.verdict,
            )
