"""Compilers give what onnxruntime gives, for each kind of network. They are skipped where not installed."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from waiting import PATIENCE_S

from singleshot.export.isolation import Worker
from singleshot.export.runtimes import installed_version, open_runtime
from singleshot.export.runtimes.iree import _reason
from singleshot.export.runtimes.protocol import ModelFiles
from singleshot.export.runtimes.static_shapes import with_static_shapes

SEED = 0


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """The best of several candidates, as BCQ's policy takes it: an int64 output, sizes that are computed."""
    rng = np.random.default_rng(SEED)
    state, latents = (
        helper.make_tensor_value_info("state", TensorProto.FLOAT, ["batch", 5]),
        helper.make_tensor_value_info("latents", TensorProto.FLOAT, ["batch", "samples", 4]),
    )
    constants = {
        "decoder": rng.normal(size=(9, 3)),
        "critic": rng.normal(size=(3, 1)),
        "one": np.array([1]),
        "two": np.array([2]),
        "rows": np.array([-1, 9]),
        "last": np.array([3]),
        "low": np.array(-0.5),
        "high": np.array(0.5),
        "all": np.array([-1]),
    }
    nodes = [
        ("Shape", ["latents"], ["pair"], {"start": 0, "end": 2}),
        ("Unsqueeze", ["state", "one"], ["column"], {}),
        ("Shape", ["state"], ["states"], {"start": 1}),
        ("Concat", ["pair", "states"], ["repeated"], {"axis": 0}),
        ("Expand", ["column", "repeated"], ["each"], {}),
        ("Clip", ["latents", "low", "high"], ["z"], {}),
        ("Concat", ["each", "z"], ["joined"], {"axis": 2}),
        ("Reshape", ["joined", "rows"], ["flat"], {}),
        ("MatMul", ["flat", "decoder"], ["raw"], {}),
        ("Tanh", ["raw"], ["candidates"], {}),
        ("MatMul", ["candidates", "critic"], ["judged"], {}),
        ("Reshape", ["judged", "pair"], ["values"], {}),
        ("ArgMax", ["values"], ["choice"], {"axis": 1, "keepdims": 0}),
        ("Concat", ["pair", "last"], ["by_state"], {"axis": 0}),
        ("Reshape", ["candidates", "by_state"], ["actions"], {}),
        ("Shape", ["state"], ["batch"], {"end": 1}),
        ("Concat", ["batch", "one", "last"], ["one_each"], {"axis": 0}),
        ("Unsqueeze", ["choice", "all"], ["choice_1"], {}),
        ("Unsqueeze", ["choice_1", "all"], ["choice_2"], {}),
        ("Expand", ["choice_2", "one_each"], ["index"], {}),
        ("GatherElements", ["actions", "index"], ["best"], {"axis": 1}),
        ("Squeeze", ["best", "one"], ["action"], {}),
    ]
    action = helper.make_tensor_value_info("action", TensorProto.FLOAT, ["batch", 3])
    choice = helper.make_tensor_value_info("choice", TensorProto.INT64, ["batch"])
    path = tmp_path_factory.mktemp("policy") / "policy.onnx"
    _save(path, nodes, [state, latents], [action, choice], constants)
    return path


@pytest.fixture(scope="module")
def style(tmp_path_factory):
    """A convolution in the manner of Johnson et al.: reflection, normalisation, halved and doubled again."""
    rng = np.random.default_rng(SEED)
    constants = {
        "around": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "down": rng.normal(size=(4, 3, 3, 3)),
        "scale": rng.uniform(0.5, 1.5, size=4),
        "shift": rng.normal(size=4),
        "sizes": np.array([1.0, 1, 2, 2]),
        "up": rng.normal(size=(3, 4, 3, 3)),
    }
    nodes = [
        ("Pad", ["pictures", "around"], ["padded"], {"mode": "reflect"}),
        ("Conv", ["padded", "down"], ["halved"], {"strides": [2, 2]}),
        ("InstanceNormalization", ["halved", "scale", "shift"], ["normal"], {}),
        ("Relu", ["normal"], ["rectified"], {}),
        (
            "Resize",
            ["rectified", "", "sizes"],
            ["doubled"],
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        ),
        ("Pad", ["doubled", "around"], ["padded_2"], {"mode": "reflect"}),
        ("Conv", ["padded_2", "up"], ["raw"], {}),
        ("Sigmoid", ["raw"], ["stylised"], {}),
    ]
    sizes = ["batch", 3, "height", "width"]
    pictures = helper.make_tensor_value_info("pictures", TensorProto.FLOAT, sizes)
    stylised = helper.make_tensor_value_info("stylised", TensorProto.FLOAT, sizes)
    path = tmp_path_factory.mktemp("style") / "style.onnx"
    _save(path, nodes, [pictures], [stylised], constants)
    return path


def _save(path, nodes, inputs, outputs, constants):
    initializers = [
        numpy_helper.from_array(value.astype(np.float32) if value.dtype.kind == "f" else value, name)
        for name, value in constants.items()
    ]
    made = [helper.make_node(kind, given, results, **options) for kind, given, results, options in nodes]
    graph = helper.make_graph(made, "main_graph", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _inputs(kind, batch):
    rng = np.random.default_rng(SEED)
    shapes = {
        "policy": {"state": (batch, 5), "latents": (batch, 7, 4)},
        "style": {"pictures": (batch, 3, 16, 24)},
    }[kind]
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def _reference(path, inputs):
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["policy", "style"])
def test_static_shapes_change_no_result(kind, batch, request):
    path, inputs = request.getfixturevalue(kind), _inputs(kind, batch)
    fixed = with_static_shapes(path, {name: value.shape for name, value in inputs.items()})
    for value in [*fixed.graph.input, *fixed.graph.output]:
        assert all(dimension.dim_value > 0 for dimension in value.type.tensor_type.shape.dim), value.name
    assert "Shape" not in {node.op_type for node in fixed.graph.node}
    session = onnxruntime.InferenceSession(fixed.SerializeToString())
    for name, expected in _reference(path, inputs).items():
        np.testing.assert_allclose(session.run([name], dict(inputs))[0], expected, atol=1e-6)


@pytest.mark.parametrize("name", ["tvm", "xla", "iree", pytest.param("tensorflow", marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["policy", "style"])
def test_a_compiled_network_gives_what_onnxruntime_gives(name, kind, batch, request, tmp_path):
    if installed_version(name) is None:
        pytest.skip("not installed; run `make compilers`")
    path, inputs = request.getfixturevalue(kind), _inputs(kind, batch)
    given = path.read_bytes()
    worker = Worker(name, 1, PATIENCE_S)
    if reason := worker.describe().unavailable:
        pytest.skip(reason)
    batches = {name: value[None] for name, value in inputs.items()}
    outputs = worker.prepare(ModelFiles(path, path, "dense"), batches, tmp_path).outputs
    expected = _reference(path, inputs)
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        assert outputs[name].dtype == value.dtype
        assert outputs[name].shape == (1, *value.shape)
        np.testing.assert_allclose(outputs[name][0], value, atol=1e-5)
    assert path.read_bytes() == given  # onnx2tf would write to it


def test_an_operator_that_has_no_translation_is_named(tmp_path):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    path = tmp_path / "graph.onnx"
    _save(path, [("Erf", ["x"], ["y"], {})], [x], [y], {})
    with pytest.raises(RuntimeError, match="no translation to JAX: Erf"):
        open_runtime("xla").prepare(ModelFiles(path, path, "dense"), {"x": (2,)}, threads=1)


def test_of_a_compilers_output_the_first_error_is_told():
    output = (
        "Error invoking IREE compiler tool iree-compile\n<stdin>:7:3: error: 'x' isn't legal\n  %0 = …\n" * 9
    )
    assert _reason(output) == "<stdin>:7:3: error: 'x' isn't legal"
