import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import small_graphs
from onnx import TensorProto, helper, numpy_helper
from waiting import PATIENCE_S

from singleshot.export.isolation import Worker
from singleshot.export.runtimes import installed_version, interpreter, open_runtime
from singleshot.export.runtimes.iree import _reason
from singleshot.export.runtimes.protocol import ModelFiles
from singleshot.io.own_process import ROOT

W = np.random.default_rng(0).standard_normal((64, 64), np.float32) / 8


@pytest.fixture
def matrix(tmp_path):
    """A graph y = tanh(x W)."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(W, "w")])
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "matrix.onnx")
    return ModelFiles(tmp_path / "matrix.onnx", tmp_path / "no source", "dense")


def test_a_runtime_has_the_version_of_its_package():
    assert installed_version("onnxruntime") == onnxruntime.__version__
    with pytest.raises(KeyError):
        open_runtime("theano")


def test_tensorflow_lives_in_an_environment_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr("singleshot.export.environment.tensorflow_python", lambda: None)
    assert installed_version("tensorflow") is None
    python = tmp_path / "bin" / "python"
    monkeypatch.setattr("singleshot.export.environment.tensorflow_python", lambda: python)
    assert interpreter("tensorflow") == python
    assert installed_version("tensorflow") is None
    package = tmp_path / "lib/python3.12/site-packages/tensorflow_cpu-2.19.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow-cpu\nVersion: 2.19.0\n")
    assert installed_version("tensorflow") == "2.19.0"
    assert interpreter("torch") == Path(sys.executable)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino-f32"])
@pytest.mark.parametrize("batch", [1, 5])
def test_a_graph_is_what_numpy_says(matrix, name, batch, tmp_path):
    x = np.random.default_rng(1).standard_normal((2, batch, 64), np.float32)
    report = Worker(name, 2, PATIENCE_S).prepare(matrix, {"x": x}, tmp_path)
    np.testing.assert_allclose(report.outputs["y"], np.tanh(x.astype(np.float64) @ W), atol=1e-6)
    assert report.precision == "float32"


def test_bfloat16_is_what_it_is_called(matrix, tmp_path):
    x = np.random.default_rng(1).standard_normal((1, 64, 64), np.float32)
    worker = Worker("openvino-bf16", 1, PATIENCE_S)
    if reason := worker.describe().unavailable:
        pytest.skip(reason)
    report = worker.prepare(matrix, {"x": x}, tmp_path)
    assert report.precision == "bfloat16"
    error = np.abs(report.outputs["y"] - np.tanh(x.astype(np.float64) @ W)).max()
    # bfloat16 rounds by up to 2^-9, float32 by 2^-24.
    assert 2**-12 < error < 2**-4


@pytest.mark.parametrize("runtime", ["openvino-f32", "onnxruntime"])
def test_a_runtime_tells_nobody(tmp_path, runtime):
    """Its telemetry leaves an id in the home folder before it sends anything."""
    small_graphs.write_bc(tmp_path / "bc.onnx")
    code = """
import sys
from pathlib import Path
from singleshot.export.runtimes import open_runtime
from singleshot.export.runtimes.protocol import ModelFiles
model = ModelFiles(Path(sys.argv[1]), Path("none"), "dense")
open_runtime(sys.argv[2]).prepare(model, {"state": (1, 17)}, 1)
assert "openvino_telemetry.main" not in sys.modules
"""
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "bc.onnx", runtime],
        env={"HOME": str(home), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin"},
        check=True,
    )
    assert list(home.iterdir()) == []


def test_an_operator_that_has_no_translation_is_named(tmp_path):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Erf", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, ir_version=10), tmp_path / "erf.onnx")
    model = ModelFiles(tmp_path / "erf.onnx", tmp_path / "no source", "dense")
    with pytest.raises(RuntimeError, match="no translation to JAX: Erf"):
        open_runtime("xla").prepare(model, {"x": (2,)}, threads=1)


def test_of_a_compilers_output_the_first_error_is_told():
    output = "Error invoking iree-compile\n<stdin>:7:3: error: 'x' isn't legal\n  %0 = …\n" * 9
    assert _reason(output) == "<stdin>:7:3: error: 'x' isn't legal"


def test_torch_compile_asks_for_a_compiler(monkeypatch, tmp_path):
    from singleshot.export.runtimes.torch_compile import TorchCompile

    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install g++" in TorchCompile("torch-compile").unavailable()
    (tmp_path / "clang++").touch(mode=0o755)
    monkeypatch.setenv("CXX", "clang++")
    assert TorchCompile("torch-compile").unavailable() is None


@pytest.mark.parametrize("name", ["onnxruntime-cuda", "onnxruntime-tensorrt", "torch-cuda"])
def test_without_a_gpu_the_reason_says_so(name):
    reason = open_runtime(name).unavailable()
    if reason is None:
        pytest.skip("there is a GPU")
    assert "GPU" in reason or "onnxruntime-gpu" in reason or "only for CPUs" in reason


def test_runtimes_are_known_without_importing_them():
    code = """
import sys
from singleshot.export.runtimes import RUNTIMES, installed_version
for name in RUNTIMES:
    installed_version(name)
foreign = {"iree", "jax", "numba", "onnx", "onnxruntime", "openvino", "torch", "tvm"} & set(sys.modules)
assert not foreign, foreign
"""
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, check=True)


FIRST_CALLS = """
import sys
import threading
from singleshot.export.runtimes.openvino import openvino

sys.setswitchinterval(1e-6)
together = threading.Barrier(4)


def call():
    together.wait()
    openvino.Type.f32.to_dtype()


threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
"""


def test_threads_may_make_their_first_calls_of_openvino_at_once():
    """Without the call that the module makes, such a process stands still: in eight tries of eight."""
    command = [sys.executable, "-c", FIRST_CALLS]
    assert subprocess.run(command, cwd=ROOT, timeout=PATIENCE_S, check=True).returncode == 0
