"""TensorFlow, and XLA by it. Runs in the environment of `environment.py`: imports nothing it hasn't got."""

import os
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.deployment.runtimes.protocol import Arrays, ModelFiles, Prepared, Runtime, Shapes

if TYPE_CHECKING:
    import tensorflow as tf


class TensorFlow(Runtime):
    """Runs a graph as a SavedModel that onnx2tf makes of it; `jit_compile` compiles it by XLA."""

    def __init__(self, jit_compile: bool) -> None:
        self._jit_compile = jit_compile

    def unavailable(self) -> str | None:
        """Why it can't run here."""
        installed = find_spec("tensorflow") and find_spec("onnx2tf")
        return None if installed else "its environment isn't built; run `make compilers`"

    def version(self) -> str:
        """Version of TensorFlow, which XLA is a part of, e.g. `2.19.0`."""
        return version("tensorflow")

    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:
        """Convert and compile for these sizes alone.

        Raises:
            RuntimeError: TensorFlow already runs on another number of threads in this process.
        """
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        import tensorflow as tf

        if tf.config.threading.get_intra_op_parallelism_threads() != threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        from tasks.deployment.runtimes.onnx_to_tensorflow import onnx_to_tensorflow

        with tempfile.TemporaryDirectory() as directory:
            onnx_to_tensorflow(model.onnx, shapes, Path(directory))
            signature = tf.saved_model.load(directory).signatures["serving_default"]
            function = _folded(signature)
        order, names = sorted(shapes), sorted(signature.structured_outputs)  # as a signature has them
        compiled = tf.function(lambda *tensors: function(*tensors), jit_compile=self._jit_compile)

        def run(inputs: Arrays) -> Arrays:
            results = compiled(*(tf.constant(inputs[name]) for name in order))
            return {name: result.numpy() for name, result in zip(names, results, strict=True)}

        return Prepared(run, "float32")


def _folded(function: "tf.types.experimental.ConcreteFunction") -> Any:
    """The same function with weights as constants, and what follows from constants computed.

    Left to itself XLA refuses what onnx2tf makes of GatherElements: a transposition by axes that are
    computed, though from constants alone. TensorFlow has no public way to do this; its converters do it so.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
    from tensorflow.python.grappler import tf_optimizer
    from tensorflow.python.training.saver import export_meta_graph

    frozen = convert_variables_to_constants_v2(function)
    inputs, outputs = ([tensor.name for tensor in tensors] for tensors in (frozen.inputs, frozen.outputs))
    graph = export_meta_graph(graph_def=frozen.graph.as_graph_def(), graph=frozen.graph)
    kept = meta_graph_pb2.CollectionDef()
    kept.node_list.value.extend([*inputs, *outputs])
    graph.collection_def["train_op"].CopyFrom(kept)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.optimizers.append("constfold")
    config.graph_options.rewrite_options.min_graph_nodes = -1  # however small it is
    folded = tf_optimizer.OptimizeGraph(config, graph)
    return tf.compat.v1.wrap_function(lambda: tf.import_graph_def(folded, name=""), []).prune(inputs, outputs)
