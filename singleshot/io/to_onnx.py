"""Conversion of networks to ONNX graphs, with the same bytes from equal networks."""

import logging
import warnings
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

from singleshot.io.onnx_model import AgentScore, GraphCard
from singleshot.io.whole_file import sha256_of

EXAMPLE = {"batch": 2, "samples": 3, "height": 24, "width": 20}
"""Input sizes at which networks are traced. They are not 0 or 1, which torch.export takes for constants, and
styles need no padding for these sides, since torch.export would take the padding for a constant, too."""


@dataclass(frozen=True)
class Network:
    """A network, and what its graph's card says of it before it is known where it comes from."""

    module: nn.Module
    """Module in float32 on the CPU, for inference. It takes tensors by position in the order of the card's
    inputs, and returns a tensor, or a tuple in the order of the card's outputs."""
    card: GraphCard


def to_onnx(network: Network, card: GraphCard, opset: int) -> onnx.ModelProto:
    """The network as a graph that passes ONNX's checker and shape inference.

    Equal arguments give equal bytes.
    """
    example = tuple(torch.zeros(each.shape_at(EXAMPLE)) for each in card.inputs)
    dynamic = tuple(
        {axis: size for axis, size in enumerate(each.shape) if isinstance(size, str)} for each in card.inputs
    )
    logging.disable(logging.WARNING)  # messages of torch's exporter, which are for its developers
    try:
        with warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                network.module,
                example,
                dynamo=True,
                dynamic_shapes=dynamic,
                input_names=[each.name for each in card.inputs],
                output_names=list(card.outputs),
                opset_version=opset,
                verbose=False,
            )
    finally:
        logging.disable(logging.NOTSET)
    assert program is not None  # it is None only for dynamo=False
    graph = program.model_proto
    _strip(graph)
    card.attach(graph)
    onnx.checker.check_model(graph, full_check=True)
    return graph


def card_of(
    network: Network, cell: str, commit: str, source: Path, score: AgentScore | None = None
) -> GraphCard:
    """The card of the graph of `network`, which belongs to `cell` and is stored in `source`."""
    return replace(network.card, cell=cell, commit=commit, source_sha256=sha256_of(source), score=score)


def with_sparse_initializers(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with its zeros left out where that takes fewer bytes.

    A kept number takes 12 bytes, as ONNX stores its index as int64; a densely stored number takes 4.
    """
    sparse = onnx.ModelProto()
    sparse.CopyFrom(graph)
    del sparse.graph.initializer[:]
    for initializer in graph.graph.initializer:
        array = numpy_helper.to_array(initializer)
        kept = np.flatnonzero(array)
        if array.dtype != np.float32 or 3 * kept.size >= array.size:
            sparse.graph.initializer.append(initializer)
            continue
        values = numpy_helper.from_array(array.ravel()[kept], initializer.name)
        indices = numpy_helper.from_array(kept.astype(np.int64))
        sparse.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, array.shape))
    sparse.doc_string += (
        " Sparse initialisers: of this project's runtimes, onnxruntime alone reads this file."
    )
    onnx.checker.check_model(sparse)  # not fully: shape inference doesn't support sparse weights
    return sparse


def _strip(graph: onnx.ModelProto) -> None:
    """Remove the notes of torch's exporter, above all stack traces with absolute paths."""
    everything = (graph.graph.node, graph.graph.initializer, graph.graph.input, graph.graph.output)
    for element in (graph.graph, *chain(*everything)):
        del element.metadata_props[:]
        element.doc_string = ""
    del graph.graph.value_info[:]
    named = {axis.dim_param for value in graph.graph.input for axis in value.type.tensor_type.shape.dim}
    for value in graph.graph.output:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param not in named:
                axis.ClearField("dim_param")
