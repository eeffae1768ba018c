"""A pruned policy by its kept weights against onnxruntime, where it is used, and what it is read from."""

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic
from small_networks import save_agent

from singleshot.export import sparse_policy
from singleshot.export.onnx_model import load_onnx
from singleshot.export.parity import random_inputs
from singleshot.export.policies import open_policy
from singleshot.export.sparse_policy import BATCHES, FastestPolicy
from singleshot.export.to_onnx import card_of, to_onnx, with_sparse_initializers
from singleshot.rl import vae
from singleshot.rl.algorithms import bc


def exported(directory, algorithm, sparsity, form, sparse=False):
    source = save_agent(directory / "agent.safetensors", algorithm, sparsity)
    network = open_policy(source, form)
    graph = to_onnx(network, card_of(network, f"Hopper/{algorithm}", "0" * 40, source), opset=20)
    path = directory / "policy.onnx"
    onnx.save(with_sparse_initializers(graph) if sparse else graph, path)
    return path


@pytest.fixture
def always_faster(monkeypatch):
    monkeypatch.setattr(sparse_policy, "_seconds", lambda policy, _: hasattr(policy, "card"))


@pytest.mark.parametrize(
    ("algorithm", "form", "sparse"),
    [("bc", "compacted", False), ("bcq", "compacted", False), ("bcq", "masked", True)],
)
def test_kept_weights_compute_what_onnxruntime_does(tmp_path, always_faster, algorithm, form, sparse):
    path = exported(tmp_path, algorithm, 0.95, form, sparse)
    policy, graph = FastestPolicy(path), load_onnx(path, threads=1)
    assert policy.sparse_from == 1
    for batch in (1, 3, 40):
        inputs = random_inputs(graph.card.inputs, {"batch": batch, "samples": 1}, seed=batch)
        found, wanted = policy(**inputs), graph(**inputs)
        assert found.keys() == wanted.keys()
        assert np.abs(found["action"] - wanted["action"]).max() < 1e-5


def test_a_policy_of_many_layers_computes_them_in_their_order(tmp_path, always_faster, monkeypatch):
    """The last of seven layers with a ReLU after each is number 12."""
    for module in (vae, bc):
        monkeypatch.setattr(module, "DECODER", tuple(f"decoder.{i}" for i in range(7)))
    path = exported(tmp_path, "bc", 0.95, "masked")
    policy, graph = FastestPolicy(path), load_onnx(path, threads=1)
    inputs = random_inputs(graph.card.inputs, {"batch": 3}, seed=0)
    assert np.abs(policy(**inputs)["action"] - graph(**inputs)["action"]).max() < 1e-5


def test_a_graph_that_was_changed_is_onnxruntimes(tmp_path, always_faster):
    """Whatever the card says of it: the graph is what was asked for."""
    path = exported(tmp_path, "bcq", 0.95, "compacted")
    quantize_dynamic(path, tmp_path / "int8.onnx", weight_type=QuantType.QInt8)
    quantised = FastestPolicy(tmp_path / "int8.onnx")
    graph = onnx.load(path)
    graph.graph.node[-1].output[0] = "before"
    graph.graph.node.append(onnx.helper.make_node("Neg", ["before"], ["action"]))
    onnx.save(graph, tmp_path / "negated.onnx")
    for policy in (quantised, FastestPolicy(tmp_path / "negated.onnx")):
        assert policy.sparse_from == np.inf
    inputs = random_inputs(quantised.card.inputs, {"batch": 3, "samples": 1}, seed=0)
    assert np.array_equal(
        quantised(**inputs)["action"], load_onnx(tmp_path / "int8.onnx", threads=1)(**inputs)["action"]
    )


def test_each_batch_goes_the_faster_way_for_its_size(tmp_path, monkeypatch):
    def seconds(policy, inputs):
        return 1 + 0.1 * len(inputs["state"]) if hasattr(policy, "card") else 3

    monkeypatch.setattr(sparse_policy, "_seconds", seconds)
    policy = FastestPolicy(exported(tmp_path, "bc", 0.9, "compacted"))
    assert policy.sparse_from == min(batch for batch in BATCHES if batch > 20)
    ways = []
    monkeypatch.setattr(policy, "_sparse", lambda **_: ways.append("kept weights"))
    monkeypatch.setattr(policy, "model", lambda **_: ways.append("onnxruntime"))
    for batch in (63, 64):
        policy(state=np.zeros((batch, 11), np.float32))
    assert ways == ["onnxruntime", "kept weights"]


def test_what_was_never_pruned_is_onnxruntimes(tmp_path):
    assert FastestPolicy(exported(tmp_path, "bc", 0.0, "dense")).sparse_from == np.inf
