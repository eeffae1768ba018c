"""Apache TVM (Relax), which compiles with LLVM for this machine's processor."""

import hashlib
import os
import shutil
import sys
import tempfile
import time
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Prepared, Runtime, Shapes
from singleshot.export.runtimes.static_shapes import with_static_shapes
from singleshot.io.hashing import sha256_of_value
from singleshot.io.user_cache import user_cache

if TYPE_CHECKING:
    import tvm

TUNE_S = 600.0
"""Tuning time of `tvm-tuned` per size of a network, in seconds; the benchmark's timeout has to be longer."""
TRIALS = 32
"""Schedules of one loop nest that the tuner measures before it checks the time and goes on to another loop
nest. Each time, it starts new builder processes, which import TVM: 8 builds take 23 s of two cores, most of
it for importing TVM."""
BUILD_LIMIT_S = 120.0
"""Timeout for building one schedule; on a busy machine, TVM's 30 s are over before a builder has started."""

RUNTIMES = {
    "tvm": {"packages": ("apache-tvm",), "slow_to_prepare": True},
    "tvm-tuned": {"packages": ("apache-tvm",), "slow_to_prepare": True},
}


class TVM(Runtime):
    """Runs a graph with loops that TVM generates; there is no BLAS in TVM's package.

    For `tvm-tuned`, meta-schedule searches for better schedules than the default ones, :data:`TUNE_S` seconds
    long. They are kept in the user's cache, by graph, shapes, processor, threads and seconds.
    """

    def __init__(self, name: str, streams: int = 1) -> None:
        super().__init__(name, streams)
        self._tune_s = TUNE_S if name == "tvm-tuned" else 0
        import_module("tvm.relax.frontend.onnx")  # here, or its two seconds would count for the first network

    def unavailable(self) -> str | None:
        """Reason why the runtime can't run here; None if it can."""
        if self._tune_s and not find_spec("xgboost"):
            return "its tuner's cost model, xgboost, is not installed; run `make compilers`"
        return None

    def version(self) -> str:
        """Version of TVM, e.g. `0.27.0.post1`."""
        return version("apache-tvm")

    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:
        """Compile for these sizes only."""
        os.environ["TVM_NUM_THREADS"] = str(threads)  # the tuner's processes read it
        import tvm
        from tvm.relax.frontend.onnx import from_onnx

        tvm.get_global_func("runtime.config_threadpool")(1, threads)
        graph = with_static_shapes(model.onnx, shapes)
        names = [output.name for output in graph.graph.output]
        module = from_onnx(graph, shape_dict={name: list(shape) for name, shape in shapes.items()})
        target = _target(threads)
        executable = self._compile(module, target, _key(model.onnx, shapes, target, self._tune_s))
        main = tvm.relax.VirtualMachine(executable, tvm.cpu())["main"]
        order = [value.name for value in graph.graph.input]

        def run(inputs: Arrays) -> Arrays:
            results = main(*(tvm.runtime.tensor(inputs[name]) for name in order))
            results = [results] if len(names) == 1 else results
            return {name: result.numpy() for name, result in zip(names, results, strict=True)}

        return Prepared(run, "float32")

    def _compile(self, module: "tvm.IRModule", target: "tvm.target.Target", key: str) -> Any:
        import tvm

        if not self._tune_s:
            return tvm.compile(module, target=target)
        from tvm.s_tir.meta_schedule.database import JSONDatabase

        # The tuner sees only loops, so operators must be lowered to loops first.
        module = tvm.relax.get_pipeline("zero")(module)
        directory = user_cache("tvm") / key
        if not directory.is_dir():
            _tune(module, target, self._tune_s, directory)
        # TVM's own compile_relax fuses once more before it looks schedules up, and then finds none, because
        # its loop nests have other attributes than the tuned ones.
        with target, JSONDatabase(work_dir=str(directory)), tvm.transform.PassContext(opt_level=3):
            module = tvm.relax.transform.MetaScheduleApplyDatabase()(module)
        return tvm.compile(module, target=target)


def _target(threads: int) -> "tvm.target.Target":
    """This processor as a target. The tuner spreads loops over `num-cores`."""
    import tvm

    host = tvm.target.Target.from_device("cpu")
    return tvm.target.Target({"kind": "llvm", "mcpu": host.attrs["mcpu"], "num-cores": threads})


def _key(path: Path, shapes: Shapes, target: "tvm.target.Target", tune_s: float) -> str:
    described = [
        hashlib.sha256(path.read_bytes()).hexdigest(),
        sorted(shapes.items()),
        str(target),
        tune_s,
        version("apache-tvm"),
    ]
    return sha256_of_value(described)


def _tune(module: "tvm.IRModule", target: "tvm.target.Target", seconds: float, directory: Path) -> None:
    """Search for schedules until time is up, and write all of them to `directory`, or none."""

    def without_cuda() -> None:
        # TVM imports CUDA's instructions for any processor, which takes 30 s in each builder process: the
        # time after which TVM gives up a build. A nested function can be sent to these processes.
        sys.modules.setdefault(cuda := "tvm.s_tir.tensor_intrin.cuda", ModuleType(cuda))

    without_cuda()
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule
    from tvm.s_tir.meta_schedule.builder import LocalBuilder
    from tvm.s_tir.meta_schedule.measure_callback import MeasureCallback, PyMeasureCallback

    @derived_object
    class Deadline(PyMeasureCallback):  # type: ignore[misc]
        def apply(self, *_: object) -> None:
            if time.monotonic() > deadline:
                raise TimeoutError

    deadline = time.monotonic() + seconds
    work = Path(tempfile.mkdtemp(dir=directory.parent))
    try:
        try:
            meta_schedule.relax_integration.tune_relax(
                module,
                {},
                target,
                str(work),
                max_trials_global=1_000_000,  # any number that is never reached in time
                num_trials_per_iter=TRIALS,
                builder=LocalBuilder(timeout_sec=BUILD_LIMIT_S, initializer=without_cuda),
                measure_callbacks=[*MeasureCallback.create("default"), Deadline()],
                seed=0,
            )
        except RuntimeError:  # TVM turns the callback's error into this
            if time.monotonic() <= deadline:
                raise
        shutil.rmtree(work / "logs", ignore_errors=True)
        if not directory.exists():
            work.rename(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


ADAPTER = TVM
