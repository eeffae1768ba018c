"""Apache TVM (Relax), which compiles with LLVM for this machine's processor."""

from importlib import import_module
from importlib.metadata import version

from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Prepared, Runtime, Shapes
from singleshot.export.runtimes.static_shapes import with_static_shapes

RUNTIMES = {"tvm": {"packages": ("apache-tvm",), "slow_to_prepare": True}}


class TVM(Runtime):
    """Runs a graph with loops that TVM generates; there is no BLAS in TVM's package."""

    def __init__(self, name: str, streams: int = 1) -> None:
        super().__init__(name, streams)
        import_module("tvm.relax.frontend.onnx")  # here, or its two seconds would count for the first network

    def version(self) -> str:
        """Version of TVM, e.g. `0.27.0.post1`."""
        return version("apache-tvm")

    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:
        """Compile for these sizes only."""
        import tvm
        from tvm.relax.frontend.onnx import from_onnx

        tvm.get_global_func("runtime.config_threadpool")(1, threads)
        graph = with_static_shapes(model.onnx, shapes)
        names = [output.name for output in graph.graph.output]
        module = from_onnx(graph, shape_dict={name: list(shape) for name, shape in shapes.items()})
        executable = tvm.compile(module, target=tvm.target.Target.from_device("cpu"))
        main = tvm.relax.VirtualMachine(executable, tvm.cpu())["main"]
        order = [value.name for value in graph.graph.input]

        def run(inputs: Arrays) -> Arrays:
            results = main(*(tvm.runtime.tensor(inputs[name]) for name in order))
            results = [results] if len(names) == 1 else results
            return {name: result.numpy() for name, result in zip(names, results, strict=True)}

        return Prepared(run, "float32")


ADAPTER = TVM
