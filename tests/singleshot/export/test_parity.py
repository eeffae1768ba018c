import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_networks import make_agent, save_agent, save_style

from singleshot.export.model_files import open_network
from singleshot.export.parity import MULTIPLES, Reference, compare, random_inputs, reference
from singleshot.io.onnx_model import GraphInput
from singleshot.rl.actions import ActionBounds


def test_random_inputs_are_in_their_ranges_and_the_same_for_a_seed():
    inputs = (GraphInput("a", ("batch", 3, "width"), -2.0, 5.0), GraphInput("b", ("batch",), 0.0, 1.0))
    made = random_inputs(inputs, {"batch": 400, "width": 2}, seed=1)

    assert made["a"].shape == (400, 3, 2)
    assert made["b"].shape == (400,)
    assert all(array.dtype == np.float32 for array in made.values())
    assert -2 <= made["a"].min() < -1.9
    assert 4.9 < made["a"].max() <= 5
    again = random_inputs(inputs, {"batch": 400, "width": 2}, seed=1)
    other = random_inputs(inputs, {"batch": 400, "width": 2}, seed=2)
    assert all(np.array_equal(made[name], again[name]) for name in made)
    assert not np.array_equal(made["a"], other["a"])


def exactly(largest=1.0, torch_error=1e-6):
    return Reference("logits", np.array([[largest, -largest / 2]]), torch_error)


def accepted(outputs, exact, precision="float32"):
    return not compare(outputs, exact, precision)[1]


@pytest.mark.parametrize("precision", MULTIPLES)
def test_errors_up_to_a_multiple_of_pytorchs_own_are_accepted(precision):
    limit = MULTIPLES[precision] * 1e-6
    for factor, right in ((0.9, True), (1.1, False), (-0.9, True), (-1.1, False)):
        outputs = {"logits": exactly().exact + np.array([[0, factor * limit]])}
        parity, reason = compare(outputs, exactly(), precision)
        assert bool(reason) != right
        assert parity.max_abs_error == pytest.approx(0.9 * limit if right else 1.1 * limit)
        assert parity.max_rel_error == parity.max_abs_error  # the largest element is 1
        assert parity.tolerance == pytest.approx(limit)
        assert parity.same_choices is None


def test_pytorch_being_exact_by_chance_does_not_forbid_rounding():
    exact = exactly(1000.0, torch_error=0.0)
    rounded = {"logits": np.float32([[np.nextafter(np.float32(1000), np.float32(0)), -500]])}
    assert accepted(rounded, exact)
    assert not accepted({"logits": np.float32([[1000.1, -500]])}, exact)


@pytest.mark.parametrize("outputs", [None, np.ones((2, 1)), np.array([[1.0, np.nan]])])
def test_outputs_that_cannot_be_compared(outputs):
    parity, told = compare({} if outputs is None else {"logits": outputs}, exactly(), "bfloat16")
    assert parity.max_abs_error is None
    assert "'logits'" in told


def bcq(gap=1e-6):
    """Two states, three samples, one action; the best two values differ by `gap`, and in the second by 1."""
    actions = np.array([[[0.1], [0.2], [0.3]], [[-0.1], [-0.2], [-0.3]]])
    values = np.array([[5.0, 5.0 - gap, 1.0], [1.0, 2.0, 3.0]])
    return Reference("action", actions, 1e-7, values, 1e-6)


def chosen(*pairs):
    return {
        "action": np.float32([[action] for action, _ in pairs]),
        "choice": np.int64([choice for _, choice in pairs]),
    }


def test_a_near_tie_may_be_settled_the_other_way_and_no_other_choice():
    assert compare(chosen((0.1, 0), (-0.3, 2)), bcq(), "float32")[0].same_choices == 1
    parity, reason = compare(chosen((0.2, 1), (-0.3, 2)), bcq(), "float32")
    assert (reason, parity.same_choices) == ("", 0.5)
    assert parity.max_abs_error < 1e-7
    assert not accepted(chosen((0.1, 1), (-0.3, 2)), bcq())
    off, reason = compare(chosen((0.1, 0), (-0.31, 2)), bcq(), "float32")
    assert reason
    assert off.max_abs_error == pytest.approx(0.01, rel=1e-5)
    parity, reason = compare(chosen((0.3, 2), (-0.3, 2)), bcq(), "float32")
    assert "values 4 less than the best" in reason
    assert parity.max_abs_error < 1e-7
    for choice in (3, -1):
        assert "indices of 3 samples" in compare(chosen((0.1, 0), (-0.3, choice)), bcq(), "float32")[1]
    # Both values may be off by the tolerance, in opposite directions.
    for tolerances, right in ((1.9, True), (2.1, False)):
        gap = tolerances * MULTIPLES["float32"] * 1e-6
        assert accepted(chosen((0.2, 1), (-0.3, 2)), bcq(gap)) == right


def test_the_reference_is_the_network_in_float64(tmp_path):
    network = open_network(save_style(tmp_path / "model.safetensors"), "dense")
    inputs = random_inputs(network.card.inputs, {"batch": 2, "height": 21, "width": 16}, seed=0)

    exact = reference(network, inputs)

    pictures = torch.from_numpy(inputs["pictures"])
    with torch.no_grad():
        single = network.module(pictures).numpy()
        double = copy.deepcopy(network.module).double()(pictures.double()).numpy()
    assert exact.torch_error == np.abs(single - double).max()
    assert 0 < exact.torch_error < 1e-5
    assert next(network.module.parameters()).dtype == torch.float32
    assert accepted({"stylised": single}, exact)
    assert not accepted({"stylised": single + 1e-3}, exact)


def test_pytorchs_error_in_one_action_is_not_a_matter_of_luck(tmp_path):
    network = open_network(save_agent(tmp_path / "agent.safetensors", "bc", 0), "dense")
    many = reference(network, random_inputs(network.card.inputs, {"batch": 400}, seed=0))
    for seed in range(10):
        one = reference(network, random_inputs(network.card.inputs, {"batch": 1}, seed))
        assert one.exact.shape == (1, 3)
        assert one.torch_error > many.torch_error / 4


@pytest.mark.parametrize("bounds", [None, ActionBounds((-3.0,) * 3, (1.0,) * 3)])
def test_the_reference_of_bcq_knows_all_candidates(tmp_path, bounds):
    replace(make_agent("bcq", 0.9), bounds=bounds).save(tmp_path / "bcq.safetensors")
    network = open_network(tmp_path / "bcq.safetensors", "masked")
    inputs = random_inputs(network.card.inputs, {"batch": 64, "samples": 5}, seed=0)

    exact = reference(network, inputs)

    assert (exact.exact.dtype, exact.exact.shape, exact.values.shape) == (np.float64, (64, 5, 3), (64, 5))
    with torch.no_grad():
        action, choice = network.module(*map(torch.from_numpy, inputs.values()))
    outputs = {"action": action.numpy(), "choice": choice.numpy()}
    assert accepted(outputs, exact)
    # Another network's answers are not taken for this one's.
    other = open_network(save_agent(tmp_path / "agent.safetensors", "bcq", 0.9, seed=1), "masked")
    assert not accepted(outputs, reference(other, inputs), "bfloat16")
