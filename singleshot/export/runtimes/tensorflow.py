"""TensorFlow, in the environment that `environment.py` builds. Imports nothing that is missing there."""

import os
import tempfile
from importlib.metadata import version
from pathlib import Path

from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Prepared, Runtime, Shapes

RUNTIMES = {
    "tensorflow": {"packages": ("tensorflow", "tensorflow-cpu"), "isolated": True, "threads_are_final": True}
}


class TensorFlow(Runtime):
    """Runs a graph as a SavedModel, converted with onnx2tf."""

    def version(self) -> str:
        """Version of TensorFlow, e.g. `2.19.0`."""
        return version("tensorflow")

    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:
        """Convert and compile for these sizes only.

        Raises:
            RuntimeError: TensorFlow already runs on another number of threads in this process.
        """
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        import tensorflow as tf

        if tf.config.threading.get_intra_op_parallelism_threads() != threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        from singleshot.export.runtimes.onnx_to_tensorflow import onnx_to_tensorflow

        with tempfile.TemporaryDirectory() as directory:
            onnx_to_tensorflow(model.onnx, shapes, Path(directory))
            function = tf.saved_model.load(directory).signatures["serving_default"]

        def run(inputs: Arrays) -> Arrays:
            results = function(**{name: tf.constant(inputs[name]) for name in shapes})
            return {name: result.numpy() for name, result in results.items()}

        return Prepared(run, "float32")


ADAPTER = TensorFlow
