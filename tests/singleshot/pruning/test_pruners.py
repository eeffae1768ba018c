from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from singleshot.pruning.dynamic import METHODS
from singleshot.pruning.masks import FOR_AGENTS, PRUNERS, find_pruner
from singleshot.pruning.pruner import Objective, Scores, Weights
from singleshot.pruning.pruners.grasp import grasp
from singleshot.pruning.pruners.magnitude import magnitude
from singleshot.pruning.pruners.random import random
from singleshot.pruning.pruners.snip import snip
from singleshot.pruning.pruners.synflow import synflow
from singleshot.pruning.variant import SMALL


def chain(weights: Weights) -> Tensor:
    signal = torch.ones(next(iter(weights.values())).shape[1], dtype=torch.float64)
    for θ in weights.values():
        signal = θ @ signal
    return signal.sum()


@pytest.fixture
def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    ).double()


@pytest.fixture
def weights(network: torch.nn.Module) -> Weights:
    return {name: p.detach() for name, p in network.named_parameters() if name.endswith("weight")}


@pytest.fixture
def objective(network: torch.nn.Module) -> Objective:
    """A regression with biases, of which a Hessian has curvature in and between all layers."""
    inputs, targets = torch.randn(20, 3).double(), torch.randn(20, 2).double()

    def loss(weights: Weights) -> Tensor:
        return torch.nn.functional.mse_loss(functional_call(network, weights, inputs), targets)

    return Objective(loss, chain, torch.Generator().manual_seed(0))


def flatten(tensors: Scores) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def unflatten(flat: Tensor, like: Weights) -> Weights:
    parts = flat.split([θ.numel() for θ in like.values()])
    return {layer: part.view(θ.shape) for (layer, θ), part in zip(like.items(), parts, strict=True)}


def test_snip_is_the_finite_difference_of_the_loss_in_each_mask_entry(objective: Objective, weights: Weights):
    θ = flatten(weights)
    ε = 1e-6
    differences = []
    for q in range(len(θ)):
        mask = torch.ones_like(θ)
        mask[q] += ε
        above = objective.loss(unflatten(θ * mask, weights))
        mask[q] -= 2 * ε
        below = objective.loss(unflatten(θ * mask, weights))
        differences.append(((above - below) / (2 * ε)).abs())
    scores = flatten(snip(objective, weights))
    assert scores.max() > 0.01
    torch.testing.assert_close(scores, torch.stack(differences), rtol=1e-6, atol=1e-9)


def test_grasp_is_the_weight_times_an_explicit_hessian_times_gradient(objective: Objective, weights: Weights):
    θ = flatten(weights)

    def loss(flat: Tensor) -> Tensor:
        return objective.loss(unflatten(flat, weights))

    g = torch.autograd.functional.jacobian(loss, θ)
    H = torch.autograd.functional.hessian(loss, θ)
    scores = flatten(grasp(objective, weights))
    torch.testing.assert_close(scores, θ * (H @ g), rtol=1e-9, atol=1e-12)
    assert (scores < 0).any()
    assert (scores > 0).any()


def test_grasp_ranks_by_the_gradient_flow_that_is_lost():
    """L = Σ aθ²/2 has gradient flow ‖∇L‖² = Σ a²θ² (eq. 2), of which a weight's removal takes θ·Hg = a²θ²."""
    a = torch.tensor([2.0, -3.0, 0.0])
    objective = Objective(lambda w: (a * w["θ"] ** 2).sum() / 2, chain, torch.Generator())
    scores = grasp(objective, {"θ": torch.tensor([1.0, 1.0, 5.0])})
    assert scores["θ"].tolist() == [4, 9, 0]


def test_grasp_of_a_channel_before_a_norm_adds_up_to_minus_its_gradient_s_square():
    """The norm undoes a kernel's scale c. Its gradient g_c is then in proportion to 1/c, and the others' stay
    the same: d(½‖g‖²)/d(log c), the kernel's sum of θ ⊙ Hg, is -‖g_c‖². Nothing undoes the last one's."""
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.InstanceNorm2d(4, eps=0),
        torch.nn.ReLU(),
        torch.nn.Conv2d(4, 3, 3),
    ]
    network = torch.nn.Sequential(*layers).double()
    x, y = torch.rand(2, 3, 9, 9).double(), torch.rand(2, 3, 5, 5).double()
    kernels = {name: p for name, p in network.named_parameters() if p.dim() == 4}
    gradients = torch.autograd.grad((network(x) - y).square().mean(), list(kernels.values()))

    def loss(weights: Weights) -> Tensor:
        return (functional_call(network, weights, x) - y).square().mean()

    weights = {name: θ.detach() for name, θ in kernels.items()}
    scores = grasp(Objective(loss, chain, torch.Generator()), weights)
    first, last = (score.sum((1, 2, 3)) for score in scores.values())
    expected_first, expected_last = (-g.square().sum((1, 2, 3)) for g in gradients)
    torch.testing.assert_close(first, expected_first, rtol=1e-9, atol=0)
    assert not torch.isclose(last, expected_last, rtol=0.5).any()


def test_synflow_by_hand():
    """R = 5·(1+2) + 6·(3+4) = 57; a weight's score is the sum over the paths through it."""
    weights = {
        "1": torch.tensor([[1.0, -2.0], [-3.0, 4.0]]).double(),
        "2": torch.tensor([[-5.0, 6.0]]).double(),
    }
    objective = Objective(lambda _: pytest.fail("SynFlow needs no loss"), chain, torch.Generator())
    scores = synflow(objective, weights)
    assert scores["1"].tolist() == [[5, 10], [18, 24]]
    assert scores["2"].tolist() == [[15, 42]]


def test_synflow_is_conserved(objective: Objective, weights: Weights):
    """What flows into a unit flows out of it, so layers' scores sum to R (Tanaka et al., theorems 1, 2)."""
    R = chain({layer: θ.abs() for layer, θ in weights.items()})
    layers = list(synflow(objective, weights).values())
    for layer in layers:
        torch.testing.assert_close(layer.sum(), R)
    for into, out_of in pairwise(layers):
        torch.testing.assert_close(into.sum(1), out_of.sum(0))


def test_magnitude_ranks_by_absolute_value_and_grasp_of_no_curvature_is_zero():
    weights = {"θ": torch.tensor([-3.0, 2.0, 0.0])}
    objective = Objective(lambda w: w["θ"].sum(), chain, torch.Generator())
    assert magnitude(objective, weights)["θ"].tolist() == [3, 2, 0]
    assert grasp(objective, weights)["θ"].tolist() == [0, 0, 0]


def test_random_scores_come_from_the_generator_and_not_the_weights(objective: Objective, weights: Weights):
    def draw(seed: int, factor: float) -> Tensor:
        seeded = Objective(objective.loss, objective.flow, torch.Generator().manual_seed(seed))
        return flatten(random(seeded, {layer: factor * θ for layer, θ in weights.items()}))

    assert torch.equal(draw(1, 1.0), draw(1, 2.0))
    assert not torch.equal(draw(1, 1.0), draw(2, 1.0))
    assert draw(1, 1.0).unique().numel() == sum(θ.numel() for θ in weights.values())


@pytest.mark.parametrize("name", PRUNERS)
def test_scores_are_shaped_like_the_weights_and_leave_them_alone(
    name: str, objective: Objective, weights: Weights
):
    before = {layer: θ.clone() for layer, θ in weights.items()}
    scores = find_pruner(name).score(objective, weights)
    assert {layer: s.shape for layer, s in scores.items()} == {layer: θ.shape for layer, θ in weights.items()}
    assert all(torch.equal(before[layer], θ) and θ.grad is None for layer, θ in weights.items())
    assert set(FOR_AGENTS) == {*METHODS, SMALL}
    assert name not in FOR_AGENTS
