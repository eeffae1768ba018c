import logging
from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor

from singleshot.errors import UserError
from singleshot.pruning.controls import CONTROLS, blind, shuffled, shuffled_first, shuffled_rest
from singleshot.pruning.masks import (
    PRUNERS,
    LayerCount,
    PruningConfig,
    count_layers,
    find_pruner,
    prune_networks,
)
from singleshot.pruning.pruner import Masks, Objective, Weights

SHAPES = {"actor": {"in": (7, 3), "out": (2, 7)}, "critic": {"in": (11, 5), "hidden": (6, 11), "out": (1, 6)}}
SCOPES = ("part", "network", "layer", "agent")
PARTS = {"critic": {"trunk": ("in", "hidden"), "head": ("out",)}}
"""The actor, which is not among them, is one part."""
PAPER_SPARSITIES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def draw_weights(seed: int = 0) -> dict[str, Weights]:
    g = torch.Generator().manual_seed(seed)
    return {
        network: {
            layer: torch.randn(shape, generator=g, dtype=torch.float64) for layer, shape in layers.items()
        }
        for network, layers in SHAPES.items()
    }


def mlp_objective(weights: Weights, seed: int) -> Objective:
    g = torch.Generator().manual_seed(seed)
    inputs = torch.randn(16, next(iter(weights.values())).shape[1], generator=g, dtype=torch.float64)

    def loss(weights: Weights) -> Tensor:
        signal = inputs
        for θ in weights.values():
            signal = torch.tanh(signal @ θ.T)
        return (signal - 0.5).square().mean()

    def flow(weights: Weights) -> Tensor:
        signal = torch.ones_like(inputs[0])
        for θ in weights.values():
            signal = θ @ signal
        return signal.sum()

    return Objective(loss, flow, g)


def mlp_objectives(weights: Mapping[str, Weights]) -> Callable[[int], dict[str, Objective]]:
    return lambda i: {network: mlp_objective(ws, seed=i) for network, ws in weights.items()}


def linear_objective(slopes: Weights) -> Objective:
    """A loss Σ sθ, so that SNIP's score of a weight is |sθ|, known beforehand."""

    def loss(weights: Weights) -> Tensor:
        return torch.stack([(slopes[layer] * θ).sum() for layer, θ in weights.items()]).sum()

    return Objective(loss, loss, torch.Generator())


def group_sizes(masks: Mapping[str, Masks], scope: str) -> list[tuple[int, int]]:
    """(total, kept) of each group of weights that competed."""
    counts = count_layers(masks, PARTS)
    key = {
        "agent": lambda _: 0,
        "network": lambda c: c.network,
        "part": lambda c: (c.network, c.part),
        "layer": lambda c: (c.network, c.layer),
    }[scope]
    groups: dict[object, tuple[int, int]] = {}
    for c in counts:
        total, kept = groups.get(key(c), (0, 0))
        groups[key(c)] = (total + c.weights_total, kept + c.weights_kept)
    return list(groups.values())


def is_subset(inner: Mapping[str, Masks], outer: Mapping[str, Masks]) -> bool:
    return all(
        bool((outer[network][layer] | ~mask).all())
        for network, ms in inner.items()
        for layer, mask in ms.items()
    )


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("pruner", PRUNERS)
@pytest.mark.parametrize("iterations", [1, 3])
def test_sparsity_is_exact_in_each_scope_and_masks_nest(scope: str, pruner: str, iterations: int):
    weights, config = draw_weights(), PruningConfig(scope=scope, iterations=iterations)
    denser = None
    for sparsity in PAPER_SPARSITIES:
        masks = prune_networks(mlp_objectives(weights), weights, pruner, sparsity, config, PARTS)
        for total, kept in group_sizes(masks, scope):
            assert kept == total - round(total * sparsity)
        assert denser is None or iterations > 1 or is_subset(masks, denser)
        denser = masks


@given(
    sparsity=st.floats(0, 1, exclude_max=True),
    levels=st.integers(1, 3),
    scope=st.sampled_from(SCOPES),
    iterations=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_counts_are_exact_whatever_the_ties(
    sparsity: float, levels: int, scope: str, iterations: int, seed: int
):
    """Scores of one to three distinct values."""
    g = torch.Generator().manual_seed(seed)
    weights = {
        network: {
            layer: torch.randint(1, levels + 1, shape, generator=g).double()
            for layer, shape in layers.items()
        }
        for network, layers in SHAPES.items()
    }
    objectives = {network: mlp_objective(ws, seed) for network, ws in weights.items()}
    config = PruningConfig(scope=scope, iterations=iterations)
    masks = prune_networks(lambda _: objectives, weights, "magnitude", sparsity, config, PARTS)
    for total, kept in group_sizes(masks, scope):
        assert kept == total - round(total * sparsity)
    if scope == "network":
        for network, layers in masks.items():
            kept_scores = torch.cat([weights[network][layer][mask] for layer, mask in layers.items()])
            cut_scores = torch.cat([weights[network][layer][~mask] for layer, mask in layers.items()])
            assert not len(cut_scores) or not len(kept_scores) or kept_scores.min() >= cut_scores.max()


def test_the_highest_scores_are_kept_by_hand():
    """Scores 1 to 6 over two layers; half the network is the top three, half of each layer is not."""
    weights = {"actor": {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([[3.0, 4.0, -6.0, 5.0]])}}
    slopes = {"actor": linear_objective({"a": torch.ones(1, 2), "b": torch.ones(1, 4)})}
    by_network = prune_networks(lambda _: slopes, weights, "snip", 0.5, PruningConfig())["actor"]
    assert [mask.tolist() for mask in by_network.values()] == [[[False] * 2], [[False, True, True, True]]]
    by_layer = prune_networks(lambda _: slopes, weights, "snip", 0.5, PruningConfig(scope="layer"))["actor"]
    assert [mask.tolist() for mask in by_layer.values()] == [[[False, True]], [[False, False, True, True]]]
    equal = {"actor": {layer: torch.ones_like(θ) for layer, θ in weights["actor"].items()}}
    first = prune_networks(lambda _: slopes, equal, "snip", 0.5, PruningConfig())["actor"]
    assert [mask.tolist() for mask in first.values()] == [[[True] * 2], [[True, False, False, False]]]


def test_parts_are_pruned_apart_by_hand():
    """Scores 1 to 6, the three lowest in the encoder: as one network it would keep none of them."""
    layers = {
        "e": torch.tensor([[1.0, 2.0, 3.0]]),
        "d0": torch.tensor([[4.0, -6.0]]),
        "d1": torch.ones(1, 1) * 5,
    }
    slopes = {"vae": linear_objective({layer: torch.ones_like(θ) for layer, θ in layers.items()})}
    parts = {"vae": {"decoder": ("d0", "d1"), "encoder": ("e",)}}
    whole, apart = (
        prune_networks(lambda _: slopes, {"vae": layers}, "snip", 0.5, PruningConfig(scope=scope), parts)[
            "vae"
        ]
        for scope in ("network", "part")
    )
    assert [mask.tolist() for mask in whole.values()] == [[[False] * 3], [[True, True]], [[True]]]
    assert list(apart) == ["e", "d0", "d1"]
    # Of three weights, round(1.5) = 2 go.
    assert [mask.tolist() for mask in apart.values()] == [[[False, False, True]], [[False, True]], [[False]]]
    assert count_layers({"vae": apart}, parts)[1] == LayerCount("vae", "decoder", "d0", 2, 1)


def test_controls_permute_all_layers_or_the_first_alone_or_all_others_as_the_generator_decides():
    masks = {layer: torch.arange(100).view(1, 10, 10) < 30 for layer in ("e0", "e1", "d0", "d1")}
    first = {"e0": 4, "d0": 4}
    cases = (shuffled, set(masks)), (shuffled_first, set(first)), (shuffled_rest, {"e1", "d1"})
    for control, permuted in cases:
        changed, again = (control(masks, first, torch.Generator().manual_seed(0)) for _ in range(2))
        assert list(changed) == list(masks)
        assert all(mask.sum() == 30 and mask.shape == (1, 10, 10) for mask in changed.values())
        assert {layer for layer in masks if not torch.equal(changed[layer], masks[layer])} == permuted
        assert all(torch.equal(changed[layer], again[layer]) for layer in masks)


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 1, 1)], ids=["linear", "convolution"])
def test_a_blind_network_keeps_all_but_what_the_mask_never_reads_of_the_state(shape: tuple[int, ...]):
    """The mask reads the state's coordinates once, never and twice, and never the action: by hand."""
    rows = torch.tensor([[True, False], [False, False], [True, True], [False, False]])  # (in, out)
    wanted = torch.tensor([[True, True], [False, False], [True, True], [True, True]])
    read, expected = (each.T.reshape(shape) for each in (rows, wanted))
    masks = blind({"in": read, "out": torch.zeros(1, 2, 4, dtype=torch.bool)}, {"in": 3}, torch.Generator())
    assert torch.equal(masks["in"], expected)
    assert masks["out"].all()


def test_controls_are_told_the_layers_that_read_the_state():
    weights = draw_weights()
    own, control = (
        prune_networks(
            mlp_objectives(weights),
            weights,
            pruner,
            0.5,
            PruningConfig(),
            observed={"actor": {"out": 7}, "critic": {"in": 5}},
        )
        for pruner in ("snip", "snip-shuffled-first")
    )
    changed = {
        (network, layer)
        for network, layers in own.items()
        for layer, mask in layers.items()
        if not torch.equal(mask, control[network][layer])
    }
    assert changed == {("actor", "out"), ("critic", "in")}


def test_erk_by_hand():
    """Layers of 2x3 and 6x20 weights, sums 5 and 26: 31 of 126 weights are one for each."""
    weights = {"net": {"a": torch.ones(2, 3), "b": torch.ones(6, 20)}}
    objectives = {"net": linear_objective(weights["net"])}

    def kept(sparsity: float, **config: int) -> list[int]:
        masks = prune_networks(lambda _: objectives, weights, "erk", sparsity, PruningConfig(**config))
        return [int(mask.sum()) for mask in masks["net"].values()]

    assert kept(1 - 31 / 126) == [5, 26]
    assert kept(1 - 62 / 126) == [6, 56]  # the small layer has no more than 6
    # Convolutions over two dimensions and over one: sums 12, 14 and 9.
    conv = {"net": {"a": torch.ones(4, 2, 3, 3), "b": torch.ones(8, 4, 1, 1), "c": torch.ones(4, 2, 3)}}
    masks = prune_networks(
        lambda _: {"net": linear_objective(conv["net"])}, conv, "erk", 1 - 35 / 128, PruningConfig()
    )
    assert [int(mask.sum()) for mask in masks["net"].values()] == [12, 14, 9]


@pytest.mark.parametrize("pruner", ["random", "erk"])
def test_rounds_leave_random_masks_as_they_are(pruner: str):
    """A generator that begins anew in each round draws the same scores."""
    weights = draw_weights()

    def objectives(_: int) -> dict[str, Objective]:
        return mlp_objectives(weights)(0)

    once, often = (
        prune_networks(objectives, weights, pruner, 0.7, PruningConfig(iterations=n)) for n in (1, 5)
    )
    assert is_subset(once, often)
    assert is_subset(often, once)


@pytest.mark.parametrize("pruner", ["snip", "grasp", "magnitude"])
def test_agent_scope_is_blind_to_the_unit_of_a_networks_loss(pruner: str):
    """Rewards in cents, not dollars, multiply the critic's loss by 10⁴ and must not move the actor's mask."""
    weights = draw_weights()

    def masks(unit: float) -> dict[str, Masks]:
        objectives = mlp_objectives(weights)(0)
        critic = objectives["critic"]
        objectives["critic"] = Objective(lambda w: unit * critic.loss(w), critic.flow, critic.generator)
        return prune_networks(lambda _: objectives, weights, pruner, 0.6, PruningConfig(scope="agent"))

    one, other = masks(1.0), masks(2.0**14)  # a power of two, so that rounding is the same
    assert is_subset(one, other)
    assert is_subset(other, one)


def test_agent_scope_lets_networks_compete():
    """Relative to their means (8 and 1), the actor's scores are 2 and 0, the critic's 1 and 1: by hand."""
    weights = {"actor": {"w": torch.tensor([16.0, 0.0])}, "critic": {"w": torch.tensor([1.0, 1.0])}}
    objectives = {network: linear_objective({"w": torch.ones(2)}) for network in weights}
    masks = prune_networks(lambda _: objectives, weights, "snip", 0.25, PruningConfig(scope="agent"))
    assert masks["actor"]["w"].tolist() == [True, False]
    assert masks["critic"]["w"].tolist() == [True, True]


@pytest.mark.parametrize("pruner", ["snip", "grasp"])
def test_rounds_score_what_earlier_rounds_left(pruner: str):
    """Against a loop over the surviving weights alone, as if the pruned ones had never been parameters."""
    weights = draw_weights()["actor"]
    total, n, sparsity = 35, 3, 0.8
    kept_after = [20, 12, 7]  # 35 · 0.2^(i/3) = 20.47, 11.97, 7
    alive = torch.arange(total)
    for i, kept in enumerate(kept_after):
        objective = mlp_objective(weights, seed=i)

        def loss(survivors: Tensor, alive: Tensor = alive, objective: Objective = objective) -> Tensor:
            flat = torch.zeros(total, dtype=torch.float64).index_put((alive,), survivors)
            return objective.loss({"in": flat[:21].view(7, 3), "out": flat[21:].view(2, 7)})

        θ = torch.cat([w.flatten() for w in weights.values()])[alive]
        g = torch.autograd.functional.jacobian(loss, θ)
        score = (θ * g).abs() if pruner == "snip" else θ * (torch.autograd.functional.hessian(loss, θ) @ g)
        best = score.argsort(descending=True, stable=True)  # disconnected weights tie at 0
        alive = alive[best[:kept]].sort().values
    masks = prune_networks(
        mlp_objectives({"actor": weights}), {"actor": weights}, pruner, sparsity, PruningConfig(iterations=n)
    )
    mask = torch.cat([m.flatten() for m in masks["actor"].values()])
    assert mask.nonzero().flatten().tolist() == alive.tolist()


def test_an_emptied_layer_is_counted_and_logged(caplog: pytest.LogCaptureFixture):
    weights = {"actor": {"in": torch.full((3, 2), 0.1), "out": torch.ones(2, 3)}}
    objectives = {
        "actor": linear_objective({layer: torch.ones_like(θ) for layer, θ in weights["actor"].items()})
    }
    with caplog.at_level(logging.WARNING):
        masks = prune_networks(lambda _: objectives, weights, "magnitude", 0.5, PruningConfig())
    assert count_layers(masks) == [
        LayerCount("actor", "actor", "in", 6, 0),
        LayerCount("actor", "actor", "out", 6, 6),
    ]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "magnitude at sparsity 0.5 left no weight of actor's layer in, and "
    )


def test_config_has_the_papers_batches_reads_from_plain_data_and_refuses_nonsense():
    assert [PruningConfig().batch_size_of(pruner) for pruner in ("snip", "grasp")] == [100, 200]
    assert PruningConfig(batch_size=50).batch_size_of("grasp") == 50
    read = TypeAdapter(PruningConfig).validate_python
    assert read({"scope": "layer", "iterations": 2}) == PruningConfig("layer", 2)
    for nonsense in ({"scope": "world"}, {"iterations": 0}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=next(iter(nonsense))):
            read(nonsense)


def test_mistakes_name_the_pruner_the_layer_or_the_key():
    θ = torch.ones(1, 3, 2)

    def own(scores: object) -> Callable[..., object]:
        def own(objective: Objective, weights: Weights) -> object:
            return scores

        return own

    for pruner, sparsity, named in (
        ("snap", 0.5, "erk, grasp, magnitude, random, snip, synflow"),
        *((name, 0.5, f"'{name}'") for name in ("snip-", "-shuffled", "erk-shuffled-shuffled")),
        *(("snip", sparsity, "sparsity is") for sparsity in (-0.1, 1.0, float("nan"))),
        (own(θ), 0.5, "own returns tensor"),
        (own({"layer": θ, "bias": torch.ones(2)}), 0.5, "own returns {"),
        (own({"layer": torch.tensor(1.0)}), 0.5, "own returns tensor(1.) for net's layer layer"),
        (own({"layer": θ * torch.inf}), 0.5, "net's layer layer"),
    ):
        with pytest.raises(UserError) as caught:
            prune_networks(
                lambda _: {"net": linear_objective({"layer": θ})},
                {"net": {"layer": θ}},
                pruner,
                sparsity,
                PruningConfig(),
            )
        assert named in str(caught.value)
    assert all(find_pruner(f"grasp-{control}") is find_pruner("grasp") for control in CONTROLS)
