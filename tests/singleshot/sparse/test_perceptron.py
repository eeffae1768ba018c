"""Sparse perceptrons against autograd of the masked dense ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from singleshot.errors import UserError
from singleshot.sparse.kernels import FEW, LANES
from singleshot.sparse.perceptron import SparsePerceptron, workspaces

HIDDEN, HEADS = ("a", "b"), ("c", "d")
SIZES = {"a": (5, 9), "b": (9, 7), "c": (7, 3), "d": (7, 2)}


def network(density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    masks = {layer: torch.rand(size, generator=generator) < density for layer, size in SIZES.items()}
    weights = {layer: torch.randn(1, *size, generator=generator) for layer, size in SIZES.items()}
    biases = {layer: torch.randn(1, 1, size[1], generator=generator) for layer, size in SIZES.items()}
    return masks, weights, biases


def masked(masks, weights, biases, x):
    for layer in HIDDEN:
        x = (x @ (weights[layer] * masks[layer]) + biases[layer]).relu()
    return [x @ (weights[head] * masks[head]) + biases[head] for head in HEADS]


def compare(masks, weights, biases, batch):
    """Outputs and all gradients of a loss that treats every output differently."""
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(1, batch, 5, generator=generator)
    factors = [torch.randn(1, batch, SIZES[head][1], generator=generator) for head in HEADS]
    graph = SparsePerceptron.of(HIDDEN, HEADS, masks)

    dense_x = x.clone().requires_grad_()
    dense = {
        kind: {k: v.clone().requires_grad_() for k, v in tensors.items()}
        for kind, tensors in (("weights", weights), ("biases", biases))
    }
    expected = masked(masks, dense["weights"], dense["biases"], dense_x)
    sum((y * f).sum() for y, f in zip(expected, factors, strict=True)).backward()

    sparse_x = x.clone().requires_grad_()
    parameters = graph.gather(weights, biases).requires_grad_()
    found = graph(parameters, sparse_x)
    sum((y * f).sum() for y, f in zip(found, factors, strict=True)).backward()

    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(sparse_x.grad, dense_x.grad, rtol=1e-5, atol=1e-4)
    gradients = {
        kind: {k: torch.zeros_like(v) for k, v in tensors.items()} for kind, tensors in dense.items()
    }
    graph.scatter(parameters.grad, gradients["weights"], gradients["biases"])
    for kind, tensors in dense.items():
        for layer, tensor in tensors.items():
            torch.testing.assert_close(gradients[kind][layer], tensor.grad, rtol=1e-5, atol=1e-3)
    without_gradients = graph(parameters.detach(), x)
    assert all(torch.equal(a, b) for a, b in zip(found, without_gradients, strict=True))


@pytest.mark.parametrize("batch", [1, FEW, 2 * FEW + 1, 100, LANES, LANES + 1, 3 * LANES - 5])
@pytest.mark.parametrize("density", [0.05, 1.0])
def test_outputs_and_gradients_are_autograds_of_the_masked_perceptron(batch, density):
    compare(*network(density), batch)


@settings(max_examples=60)
@given(density=st.floats(0, 1), seed=st.integers(0, 2**31), batch=st.integers(1, 2 * LANES))
def test_any_mask_will_do(density, seed, batch):
    compare(*network(density, seed), batch)


def test_units_that_lead_nowhere_are_left_out_in_a_cascade():
    """Of a's units 0 leads to b's 0 alone, and that one nowhere."""
    masks = {layer: torch.ones(size, dtype=torch.bool) for layer, size in SIZES.items()}
    masks["c"][0], masks["d"][0] = False, False
    masks["b"][0, 1:] = False
    graph = SparsePerceptron.of(HIDDEN, HEADS, masks)
    assert graph.live["a"].tolist() == list(range(1, 9))
    assert graph.live["b"].tolist() == list(range(1, 7))
    assert len(graph.matrix.indices) == 5 * 8 + 8 * 6 + 6 * 5
    compare(masks, *network(1.0)[1:], batch=20)


def test_scatter_leaves_what_takes_no_part_alone():
    masks, weights, biases = network(0.2)
    graph = SparsePerceptron.of(HIDDEN, HEADS, masks)
    parameters = graph.gather(weights, biases)
    before = {layer: weight.clone() for layer, weight in weights.items()}
    graph.scatter(parameters, weights, biases)
    assert all(torch.equal(weights[layer], before[layer]) for layer in SIZES)
    graph.scatter(parameters + 1, weights, biases)
    changed = {layer: weights[layer] != before[layer] for layer in SIZES}
    assert sum(int(c.sum()) for c in changed.values()) == len(graph.matrix.indices)
    assert all((~changed[layer] | masks[layer]).all() for layer in SIZES)


def test_nan_and_infinity_come_through_a_relu_and_a_second_backward_pass_is_refused():
    """Training looks for the former in its losses. The units' memory is another's by the second pass."""
    masks, weights, biases = network(1.0)
    graph = SparsePerceptron.of(HIDDEN, HEADS, masks)
    parameters = graph.gather(weights, biases).requires_grad_()
    for value in (torch.nan, torch.inf):
        found = torch.cat(graph(parameters, torch.full((1, 1, 5), value)), dim=-1)
        assert not found.isfinite().any()
    loss = graph(parameters, torch.ones(1, 3, 5))[0].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward"):
        loss.backward()


@pytest.mark.parametrize(("rows", "n"), [(1, 1), (3, 2), (10, 100), (LANES, 10), (LANES + 5, 2)])
@pytest.mark.parametrize("density", [0.0, 0.3])
def test_rows_of_a_first_input_may_be_for_several_of_a_second(density, rows, n):
    masks, weights, biases = network(density)
    graph = SparsePerceptron.of(HIDDEN, HEADS, masks)
    parameters = graph.gather(weights, biases)
    generator = torch.Generator().manual_seed(n)
    first = torch.randn(1, rows, 3, generator=generator)
    second = torch.randn(1, rows * n, 2, generator=generator)
    whole = torch.cat([first.repeat_interleave(n, dim=1), second], dim=-1)
    for own, expected in zip(graph(parameters, first, second), graph(parameters, whole), strict=True):
        assert torch.equal(own, expected)
    for own, expected in zip(graph(parameters, whole), masked(masks, weights, biases, whole), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("n", [1, 4])
def test_gradients_of_two_inputs_are_those_of_their_concatenation(n, wanted):
    masks, weights, biases = network(0.5)
    graph = SparsePerceptron.of(HIDDEN, HEADS, masks)
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(shape, generator=generator) for shape in ((1, 30, 3), (1, 30 * n, 2))] + [
        graph.gather(weights, biases)
    ]
    found, expected = (
        [leaf.clone().requires_grad_(own) for leaf, own in zip(leaves, (*wanted, True), strict=True)]
        for _ in range(2)
    )
    for (first, second, parameters), apart in ((found, True), (expected, False)):
        inputs = (first, second)
        if not apart:
            inputs = (torch.cat([first.repeat_interleave(n, dim=1), second], dim=-1),)
        sum(y.square().sum() for y in graph(parameters, *inputs)).backward()
    for own, other in zip(found, expected, strict=True):
        assert (own.grad is None) == (other.grad is None)
        if own.grad is not None:
            torch.testing.assert_close(own.grad, other.grad)


def test_memory_is_used_again_whatever_the_sizes():
    """By steps of training, and by what is computed between them without gradients."""
    masks, weights, biases = network(0.5)
    graph = SparsePerceptron.of(HIDDEN, HEADS, masks)
    parameters = graph.gather(weights, biases).requires_grad_()

    def step(batch):
        graph(parameters.detach(), torch.ones(1, batch, 5))
        sum(y.sum() for y in graph(parameters, torch.ones(1, batch, 5))).backward()

    step(200 * LANES)  # more than a page's floats
    held = {id(workspace) for workspace in workspaces.free}
    for batch in (1, 100 * LANES, 7, 200 * LANES):
        step(batch)
    assert {id(workspace) for workspace in workspaces.free} == held


def test_inputs_of_another_width_are_refused_before_a_kernel_reads_beyond_them():
    masks, weights, biases = network(0.5)
    graph = SparsePerceptron.of(HIDDEN, HEADS, masks)
    parameters = graph.gather(weights, biases)
    for x in (torch.ones(1, 3, 4), torch.ones(1, 3, 6), torch.ones(2, 3, 5), torch.ones(3, 5)):
        with pytest.raises(UserError, match="inputs"):
            graph(parameters, x)
    with pytest.raises(UserError, match="5 columns, and their parameters"):
        graph(parameters[:-1], torch.ones(1, 3, 5))
