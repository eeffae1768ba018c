"""IREE, compiled for this machine's processor."""

import io
from importlib.metadata import version

import numpy as np
import onnx

from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Prepared, Runtime, Shapes
from singleshot.export.runtimes.static_shapes import with_static_shapes

RUNTIMES = {"iree": {"packages": ("iree-base-runtime",), "slow_to_prepare": True}}


class IREE(Runtime):
    """Runs a graph with the backend `llvm-cpu`, which compiles MLIR with LLVM."""

    def version(self) -> str:
        """Version of the compiler, e.g. `3.13.0`."""
        return version("iree-base-compiler")

    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:
        """Compile for these sizes only: with a dynamic height and width, convolutions don't compile.

        Raises:
            RuntimeError: the compiler refuses the graph; the message is the compiler's.
        """
        from iree import runtime

        graph = with_static_shapes(model.onnx, shapes)
        names = [output.name for output in graph.graph.output]
        order = [value.name for value in graph.graph.input]
        program = _compile(graph)
        # `local-task` spreads work over threads, and hands it to another thread even if there is only one.
        if threads == 1:
            config = runtime.Config("local-sync")
        else:
            runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
            config = runtime.Config("local-task")
        module = runtime.VmModule.copy_buffer(config.vm_instance, program)
        function = runtime.load_vm_module(module, config)[graph.graph.name]

        def run(inputs: Arrays) -> Arrays:
            results = function(*(inputs[name] for name in order))
            results = [results] if len(names) == 1 else results
            return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}

        return Prepared(run, "float32")


def _compile(graph: onnx.ModelProto) -> bytes:
    from iree import compiler
    from iree.compiler import ir
    from iree.compiler.extras import onnx_importer

    with ir.Context() as context:
        info = onnx_importer.ModelInfo(graph)
        module = info.create_module(context=context).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        bytecode = io.BytesIO()
        module.write_bytecode(bytecode)
    flags = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"]
    try:
        return compiler.compile_str(
            bytecode.getvalue(), target_backends=["llvm-cpu"], input_type="onnx", extra_args=flags
        )
    except compiler.CompilerToolError as error:
        raise RuntimeError(f"IREE: {_reason(str(error))}") from error


def _reason(output: str) -> str:
    """The first error in a compiler's output, without the whole program that follows it."""
    lines = [line.strip() for line in output.splitlines()]
    return next((line for line in lines if "error:" in line), lines[0])[:300]


ADAPTER = IREE
