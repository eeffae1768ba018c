"""TensorFlow, in the environment that `environment.py` builds. Imports nothing that is missing there."""

import contextlib
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
        with tempfile.TemporaryDirectory() as directory:
            onnx_to_tensorflow(model.onnx, shapes, Path(directory))
            function = tf.saved_model.load(directory).signatures["serving_default"]

        def run(inputs: Arrays) -> Arrays:
            results = function(**{name: tf.constant(inputs[name]) for name in shapes})
            return {name: result.numpy() for name, result in results.items()}

        return Prepared(run, "float32")


def onnx_to_tensorflow(path: Path, shapes: Shapes, directory: Path) -> None:
    """Write a SavedModel for inputs of these shapes to `directory`, with the graph's own names and axes.

    Sizes are fixed first, because onnx2tf guesses which axes are channels, and checks its guess against
    onnxruntime if it knows all sizes. Otherwise it refuses BCQ's policy, and without the check, it converts
    that policy wrongly. Inside the SavedModel, pictures have their channels last. onnx2tf downloads pictures
    for a graph whose input has its channels last, so the input keeps its axes.

    Raises:
        ValueError: onnx2tf can't convert the graph.
    """
    import onnx
    import onnx2tf
    import onnxsim

    model = onnx.load(path)
    sizes = {name: list(shape) for name, shape in shapes.items()}
    fixed, _ = onnxsim.simplify(model, overwrite_input_shapes=sizes)
    del fixed.metadata_props[:]
    # onnx2tf overwrites the file that it reads, and prints a lot.
    copy = directory / "fixed.onnx"
    onnx.save(fixed, copy)
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            network = onnx2tf.convert(
                input_onnx_file_path=str(copy),
                output_folder_path=str(directory),
                keep_shape_absolutely_input_names=list(shapes),
                not_use_onnxsim=True,
                disable_model_save=True,
                non_verbose=True,
                verbosity="error",
            )
    except SystemExit as error:  # onnx2tf exits when it can't go on
        raise ValueError(f"{path}: onnx2tf can't convert it") from error
    finally:
        copy.unlink()
    names = [output.name for output in model.graph.output]
    _save(network, names, directory)


def _save(network: Any, names: list[str], directory: Path) -> None:
    import tensorflow as tf

    signature = [tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name) for tensor in network.inputs]

    def serve(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        results = tf.nest.flatten(network(list(tensors)))
        return {
            name: tf.transpose(result, (0, 3, 1, 2)) if network.onnx_output_layouts[name] else result
            for name, result in zip(names, results, strict=True)
        }

    module = tf.Module()
    module.network = network
    module.serve = tf.function(serve, input_signature=signature)
    tf.saved_model.save(module, str(directory), signatures=module.serve)


ADAPTER = TensorFlow
