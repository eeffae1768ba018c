"""Converts ONNX to TensorFlow's SavedModel with onnx2tf, in the environment that `environment.py` builds."""

import contextlib
import os
from pathlib import Path
from typing import Any

import onnx
import onnx2tf
import onnxsim
import tensorflow as tf

from singleshot.export.runtimes.protocol import Shapes


def onnx_to_tensorflow(path: Path, shapes: Shapes, directory: Path) -> None:
    """Write a SavedModel for inputs of these shapes to `directory`, with the graph's own names and axes.

    Sizes are fixed first, because onnx2tf guesses which axes are channels, and checks its guess against
    onnxruntime if it knows all sizes. Otherwise it refuses BCQ's policy, and without the check, it converts
    that policy wrongly. Inside the SavedModel, pictures have their channels last. onnx2tf downloads pictures
    for a graph whose input has its channels last, so the input keeps its axes.

    Raises:
        ValueError: onnx2tf can't convert the graph.
    """
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
