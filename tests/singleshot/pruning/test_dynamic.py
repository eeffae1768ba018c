import math

import pytest
import torch

from singleshot.pruning import dynamic
from singleshot.pruning.dynamic import METHODS, Change, changes, moved
from singleshot.pruning.pruner import Masks, Weights


def change(
    weights: dict[str, Weights],
    masks: dict[str, Masks],
    update: int,
    gradients: dict[str, Weights] | None = None,
) -> Change:
    return Change(
        update,
        1000,
        0.8,
        weights,
        masks,
        lambda: gradients or {},
        torch.Generator().manual_seed(0),
        "part",
        {},
    )


def test_weights_move_from_the_smallest_to_the_largest_gradients_by_hand():
    """Of three kept weights 0.1 and 0.3 move; 0.1 comes back, as its gradient is the largest."""
    θ = torch.tensor([[0.1, -0.5, 0.3, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True, False, False, False]])
    growth = torch.tensor([[9.0, 0.05, 0.0, 0.2, 0.7, 0.1]])
    assert moved(θ, mask, growth, 0.67).tolist() == [[True, True, False, False, True, False]]  # ⌊2.01⌋ = 2
    assert torch.equal(moved(θ, mask, growth.flip(1), 0.3), mask)  # ⌊0.9⌋ = 0


@pytest.mark.parametrize(("update", "fraction"), [(375, 0.15), (250, 0.225), (500, 0.075)])
def test_fewer_weights_move_as_training_goes_on(update: int, fraction: float):
    """0.15 (1 + cos(π t / 750)) of a layer's 1,000 kept weights; cos is 0, 1/2 and -1/2."""
    g = torch.Generator().manual_seed(1)
    θ = torch.rand(50, 100, generator=g) + 1
    mask = (torch.arange(5000) < 1000).view(50, 100)
    gradients = {"net": {"layer": -torch.rand(50, 100, generator=g) * ~mask}}
    masks = METHODS["rigl"].change(
        change({"net": {"layer": θ * mask}}, {"net": {"layer": mask}}, update, gradients)
    )
    new = masks["net"]["layer"]
    k = math.floor(1000 * fraction + 1e-9)
    assert int(new.sum()) == 1000
    assert abs(int((new & ~mask).sum()) - k) <= 1
    k = int((new & ~mask).sum())
    assert torch.equal(new & mask, mask & (θ > (θ * mask)[mask].kthvalue(k).values))
    magnitude = gradients["net"]["layer"].abs()
    assert torch.equal(new & ~mask, magnitude > magnitude.flatten().kthvalue(5000 - k).values)


def test_set_grows_anywhere():
    """As many among the first as among the second half of the pruned weights, and other ones by generator."""
    θ, mask = torch.rand(100, 100) + 1, (torch.arange(10_000) < 2000).view(100, 100)
    own = change({"net": {"layer": θ * mask}}, {"net": {"layer": mask}}, 100)
    first, second = (METHODS["set"].change(own)["net"]["layer"] for _ in range(2))
    assert int(first.sum()) == 2000
    grown = (first & ~mask).flatten()
    assert (
        450 < int(grown.sum()) < 600
    )  # 0.15 (1 + cos(π 100 / 750)) = 0.287 of 2,000; some grow where they were
    assert 0.4 < int(grown[2000:6000].sum()) / int(grown.sum()) < 0.6
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("update", "kept"), [(200, 100), (500, 30), (800, 20), (900, 20)])
def test_gradual_pruning_follows_the_cubic_schedule(update: int, kept: int):
    """At half of the way to 80 %: 0.8 (1 - (1/2)³) = 0.7."""
    θ = torch.arange(1.0, 101.0).view(4, 25)
    masks = {"net": {"layer": torch.ones(4, 25, dtype=torch.bool)}}
    new = METHODS["gradual"].change(change({"net": {"layer": -θ}}, masks, update))["net"]["layer"]
    assert torch.equal(new, θ > 100 - kept)


def test_finetuned_keeps_the_largest_weights_of_all_layers_that_compete():
    weights = {"net": {"a": torch.tensor([[1.0, -9.0]]), "b": torch.tensor([[2.0, 3.0, 4.0]])}}
    masks = {"net": {layer: torch.ones_like(θ, dtype=torch.bool) for layer, θ in weights["net"].items()}}
    new = METHODS["finetuned"].change(change(weights, masks, 500))["net"]
    assert {layer: mask.tolist() for layer, mask in new.items()} == {
        "a": [[False, True]],
        "b": [[False, False, False]],
    }


def test_updates_after_which_masks_change():
    assert list(changes("snip", 1000)) == []
    assert list(changes("rigl", 1000)) == list(changes("set", 1000)) == [100, 200, 300, 400, 500, 600, 700]
    assert list(changes("gradual", 1000)) == [300, 400, 500, 600, 700, 800]
    assert list(changes("finetuned", 1000)) == [500]
    for updates in (1, 5, 99, 12_345):  # the last change is within the training, however short
        assert 0 < changes("gradual", updates)[-1] <= updates
        assert 0 < changes("finetuned", updates)[-1] <= updates
    assert dynamic.INTERVAL == 100
