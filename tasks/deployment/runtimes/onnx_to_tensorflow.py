"""ONNX to TensorFlow's SavedModel by onnx2tf. Runs in the environment of `environment.py`."""

import contextlib
import os
from pathlib import Path
from typing import Any

import onnx
import onnx2tf
import onnxsim
import tensorflow as tf

from tasks.deployment.runtimes.protocol import Shapes


def onnx_to_tensorflow(path: Path, shapes: Shapes, directory: Path) -> None:
    """Write a SavedModel for inputs of these shapes to `directory`: the graph's own names and axes outside.

    Sizes are fixed first, as onnx2tf guesses which axes are channels and checks its guess against onnxruntime
    where it knows all sizes; otherwise it refuses BCQ's policy, and without the check gets it wrong. Inside,
    pictures have their channels last. It downloads pictures for a graph whose input has, so the input keeps
    its axes.

    Raises:
        ValueError: onnx2tf can't convert the graph.
    """
    model = onnx.load(path)
    sizes = {name: list(shape) for name, shape in shapes.items()}
    fixed, _ = onnxsim.simplify(model, overwrite_input_shapes=sizes)
    del fixed.metadata_props[:]
    # onnx2tf writes to the file that it reads, and talks a lot.
    copy = directory / "fixed.onnx"
    onnx.save(fixed, copy)
    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            network = onnx2tf.convert(
                input_onnx_file_path=str(copy),
                output_folder_path=str(directory),
                keep_shape_absolutely_input_names=list(shapes),
                not_use_onnxsim=True,
                disable_model_save=True,
                non_verbose=True,
                verbosity="error",
            )
    except SystemExit as error:  # how onnx2tf ends when it can't go on
        raise ValueError(f"{path}: onnx2tf can't convert it") from error
    finally:
        copy.unlink()
    names = [output.name for output in model.graph.output]
    _save(network, names, directory)


def _save(network: Any, names: list[str], directory: Path) -> None:
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
