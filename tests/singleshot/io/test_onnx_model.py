import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from singleshot.errors import UserError
from singleshot.io.onnx_model import GraphCard, GraphInput, load_onnx, read_card, unbatched_shapes

CARD = GraphCard(
    kind="policy",
    cell="Hopper/bc/dense/seed-0",
    form="dense",
    sparsity=0.0,
    commit="0123abc",
    source_sha256="f" * 64,
    inputs=(GraphInput("state", ("batch", 2), -10.0, 10.0),),
    outputs=("action", "twice"),
    details={"environment": "Hopper", "action_size": 2, "labels": ["é", "b"]},
)


@pytest.fixture
def graph():
    """action = state, twice = state + state."""
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2])
        for name in ("state", "action", "twice")
    }
    nodes = [
        helper.make_node("Identity", ["state"], ["action"]),
        helper.make_node("Add", ["state", "state"], ["twice"]),
    ]
    outputs = [values["twice"], values["action"]]
    return helper.make_model(
        helper.make_graph(nodes, "g", [values["state"]], outputs),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )


def test_a_card_comes_back_as_it_was_attached(graph, tmp_path):
    dataclasses.replace(CARD, cell="another").attach(graph)
    CARD.attach(graph)
    onnx.save(graph, tmp_path / "a.onnx")
    assert read_card(tmp_path / "a.onnx") == CARD
    assert load_onnx(tmp_path / "a.onnx").card == CARD


def test_outputs_are_named_whatever_their_order_in_the_graph(graph, tmp_path):
    CARD.attach(graph)
    onnx.save(graph, tmp_path / "a.onnx")
    state = np.float32([[1, 2], [3, 4], [5, 6]])
    outputs = load_onnx(tmp_path / "a.onnx", threads=1)(state=state)
    np.testing.assert_array_equal(outputs["action"], state)
    np.testing.assert_array_equal(outputs["twice"], 2 * state)


@pytest.mark.parametrize("read", [load_onnx, read_card])
def test_files_that_are_no_graphs_of_this_project(read, graph, tmp_path):
    with pytest.raises(UserError, match=r"missing\.onnx: no such file"):
        read(tmp_path / "missing.onnx")
    onnx.save(graph, tmp_path / "other.onnx")
    with pytest.raises(UserError, match=r"other\.onnx: not a graph of this project"):
        read(tmp_path / "other.onnx")
    CARD.attach(graph)
    graph.metadata_props[0].value = '"tree"'
    onnx.save(graph, tmp_path / "odd.onnx")
    with pytest.raises(UserError, match=r"odd\.onnx: exported by another version of this project"):
        read(tmp_path / "odd.onnx")
    (tmp_path / "cut.onnx").write_bytes(graph.SerializeToString()[:-7])
    with pytest.raises(UserError, match=r"cut\.onnx: not a whole") as caught:
        read(tmp_path / "cut.onnx")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "lie",
    [
        {"outputs": ()},
        {"cell": "styles//etc"},
        {"cell": "styles/../../etc"},
        {"cell": "a\nerror: b"},
        {"details": {"environment": "Hopper", "action_size": 10**9}},
        {"details": {"environment": ["Hopper"], "action_size": 2}},
        {"details": {"environment": "\ud800", "action_size": 2}},
        {"kind": "classifier", "details": {"architecture": "a", "weights": 5}},
    ],
)
def test_a_card_names_no_file_elsewhere_and_has_what_is_relied_on(lie, graph, tmp_path):
    dataclasses.replace(CARD, **lie).attach(graph)
    onnx.save(graph, tmp_path / "lie.onnx")
    with pytest.raises(UserError, match=r"lie\.onnx: exported by another version"):
        read_card(tmp_path / "lie.onnx")


@pytest.mark.parametrize("size", [0, 10**9])
def test_inputs_have_a_size(size):
    latents = (GraphInput("latents", ("batch", "samples", 2), -1.0, 1.0),)
    assert unbatched_shapes(latents, {"samples": 3}) == {"latents": (3, 2)}
    with pytest.raises(ValueError, match="latents of shape"):
        unbatched_shapes(latents, {"samples": size})


@pytest.mark.parametrize("where", ["loop", "function", "constant"])
def test_a_graph_that_may_never_end_or_reads_another_file_is_refused(where, graph, tmp_path):
    CARD.attach(graph)
    keep = helper.make_graph([helper.make_node("Identity", ["on"], ["still"])], "keep", [], [])
    loop = helper.make_node("Loop", ["", "on"], [], body=keep)
    if where == "loop":
        graph.graph.node.append(loop)
    elif where == "constant":
        secret = TensorProto(dims=[2], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        secret.external_data.add(key="location", value="secret.bin")
        graph.graph.node.append(helper.make_node("Constant", [], ["c"], value=secret))
    else:
        graph.functions.append(helper.make_function("own", "f", [], [], [], graph.opset_import))
    onnx.save(graph, tmp_path / "endless.onnx")
    with pytest.raises(UserError, match=r"endless\.onnx: has a loop"):
        load_onnx(tmp_path / "endless.onnx")
