import numpy as np
import pytest
import torch
from small_networks import save_agent, save_style
from torch import nn

from singleshot.export.model_files import open_network
from singleshot.export.parity import random_inputs
from singleshot.export.runtimes.numba_sparse import KeptWeights, NumbaSparse, with_kept_weights
from singleshot.export.runtimes.protocol import ModelFiles


@pytest.mark.parametrize("form", ["masked", "compacted"])
@pytest.mark.parametrize("algorithm", ["bc", "bcq"])
@pytest.mark.parametrize("batch", [1, 30])
def test_policies_are_what_pytorch_computes(tmp_path, algorithm, form, batch):
    path = save_agent(tmp_path / "agent.safetensors", algorithm, 0.9)
    network = open_network(path, form)
    inputs = random_inputs(network.inputs, {"batch": batch, "samples": 10}, seed=0)
    prepared = NumbaSparse("numba-sparse").prepare(
        ModelFiles(tmp_path / "none.onnx", path, form), {}, threads=1
    )
    found = prepared.run(inputs)
    assert list(found) == list(network.outputs)
    tensors = [torch.from_numpy(inputs[each.name]) for each in network.inputs]
    with torch.inference_mode():
        if algorithm == "bc":
            action = network.module(*tensors)
        else:
            actions, values = network.module.candidates(*tensors)
            rows, choice = torch.arange(batch), torch.from_numpy(found["choice"])
            # Which of equals is chosen is up to rounding, and so to the processor: float32 is off by 2e-9 in
            # these values, the best two may be 1e-9 apart, and all ten are 2e-6 apart.
            torch.testing.assert_close(values[rows, choice], values.amax(1), rtol=0, atol=2e-8)
            action = actions[rows, choice]
    np.testing.assert_allclose(found["action"], action.numpy(), atol=1e-5)


def test_perceptrons_alone_are_replaced():
    perceptron = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    module = nn.ModuleDict({"a": perceptron, "b": nn.Sequential(nn.Linear(3, 3), nn.Tanh())})
    x = torch.randn(5, 3)
    expected = perceptron(x).detach()
    replaced = with_kept_weights(module)
    assert isinstance(replaced["a"], KeptWeights)
    assert isinstance(replaced["b"], nn.Sequential)
    torch.testing.assert_close(replaced["a"](x), expected)


def test_a_style_has_no_perceptron(tmp_path):
    path = save_style(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="a style has no perceptron"):
        NumbaSparse("numba-sparse").prepare(ModelFiles(tmp_path / "none.onnx", path, "dense"), {}, threads=1)
