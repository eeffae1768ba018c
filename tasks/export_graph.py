"""Exports networks as ONNX files, checked, compared with the original, and byte-identical everywhere."""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import torch
from annotated_types import Ge
from onnx import numpy_helper

from singleshot.export.network import Network
from singleshot.export.onnx_model import Form, GraphCard, Kind, load_onnx
from singleshot.export.parity import Reference, compare, random_inputs, reference
from singleshot.export.runtimes.protocol import Arrays
from singleshot.io.hashing import sha256_of
from tasks.job import Event, Job, Metrics
from tasks.tables import write_csv

COMPARED: Mapping[Kind, Sequence[Mapping[str, int]]] = {
    "policy": [{"batch": batch, "samples": samples} for batch, samples in [(1, 10), (8, 3), (256, 1)]],
    "style": [
        {"batch": batch, "height": height, "width": width}
        for batch, height, width in [(1, 64, 64), (2, 61, 75), (3, 38, 5)]
    ],
    "classifier": [{"batch": batch} for batch in (1, 3)],
}
"""Input sizes at which every file is compared with the network it was made from."""
EXAMPLE = {"batch": 2, "samples": 3, "height": 24, "width": 20}
"""Input sizes at which networks are traced. They are not 0 or 1, which torch.export takes for constants, and
styles need no padding for these sides, since torch.export would take the padding for a constant, too."""


@dataclass(frozen=True)
class ExportParams:
    """Parameters of the export of a network to ONNX files."""

    cell: str
    """Cell of the network, e.g. `HalfCheetah/bcq/snip-0.95/seed-0`; the files are named after it."""
    opset: Annotated[int, Ge(18)]
    """Version of ONNX's operators."""
    sparse_initializers: bool = False
    """Whether to write pruned networks a second time, in fewer bytes; not every runtime reads such files."""


@dataclass(frozen=True)
class ExportRow:
    """One file: a row of exports.csv."""

    model: str
    """The network's cell."""
    kind: Kind
    form: Form
    sparsity: float
    file: str
    sparse_initializers: bool
    opset: int
    parameters: int
    """Number of stored weights and biases; sparse initialisers store no zeros."""
    bytes: int
    max_abs_error: float
    """Largest absolute difference of onnxruntime from float64, over all compared inputs."""
    torch_error: float
    """The same for float32 in PyTorch; for a compacted network, the value of its masked form."""


def graph_name(cell: str, form: Form, sparse: bool = False) -> str:
    """Name of a network's file, e.g. `hopper-bcq-snip-0.95-seed-0-compacted.onnx`."""
    slug = cell.replace("/", "-").lower()
    suffix = "-sparse" if sparse else "-compacted" if form == "compacted" else ""
    return f"{slug}{suffix}.onnx"


def export(job: Job, params: ExportParams, source: Path, networks: Sequence[Network]) -> Iterator[Event]:
    """Write `networks`, all forms of the network in `source`, and `exports.csv`, with a row for each file.

    Each form is compared with the first. Metrics have the form at the end of their names.

    Raises:
        ArithmeticError: onnxruntime's outputs for a file are off by more than rounding explains.
    """
    rows = []
    inputs = [random_inputs(networks[0].inputs, sizes, seed=0) for sizes in COMPARED[networks[0].kind]]
    references = [reference(networks[0], arrays) for arrays in inputs]
    for network in networks:
        graph = to_onnx(network, card_of(network, params.cell, job.commit, source), params.opset)
        graphs = {graph_name(params.cell, network.form): graph}
        if params.sparse_initializers and network.form == "masked":
            name = graph_name(params.cell, network.form, sparse=True)
            graphs[name] = with_sparse_initializers(graph)
        for name, made in graphs.items():
            onnx.save(made, job.output / name)
            error = _largest_error(job.output / name, inputs, references)
            rows.append(_row(params, network, job.output / name, made, error, references))
            form = network.form if made is graph else "sparse"
            values = {"bytes": rows[-1].bytes, "parameters": rows[-1].parameters, "max_abs_error": error}
            yield Metrics(0, {f"{key}_{form}": value for key, value in values.items()})
    write_csv(job.output / "exports.csv", ExportRow, rows)


def card_of(network: Network, cell: str, commit: str, source: Path) -> GraphCard:
    """The card of the graph of `network`, which belongs to `cell` and is stored in `source`."""
    return GraphCard(
        kind=network.kind,
        cell=cell,
        form=network.form,
        sparsity=network.sparsity,
        commit=commit,
        source_sha256=sha256_of(source),
        inputs=network.inputs,
        outputs=network.outputs,
        details=network.details,
        meanings=network.meanings,
    )


def to_onnx(network: Network, card: GraphCard, opset: int) -> onnx.ModelProto:
    """The network as a graph that passes ONNX's checker and shape inference.

    Equal arguments give equal bytes.
    """
    example = tuple(torch.zeros(graph_input.shape_at(EXAMPLE)) for graph_input in network.inputs)
    dynamic = tuple(
        {axis: size for axis, size in enumerate(graph_input.shape) if isinstance(size, str)}
        for graph_input in network.inputs
    )
    with _quiet():
        program = torch.onnx.export(
            network.module,
            example,
            dynamo=True,
            dynamic_shapes=dynamic,
            input_names=[graph_input.name for graph_input in network.inputs],
            output_names=list(network.outputs),
            opset_version=opset,
            verbose=False,
        )
    assert program is not None  # it is None only for dynamo=False
    graph = program.model_proto
    _strip(graph)
    card.attach(graph)
    onnx.checker.check_model(graph, full_check=True)
    return graph


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
    sparse.doc_string = "Sparse initialisers: of this project's runtimes, onnxruntime alone reads this file."
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


def _largest_error(path: Path, inputs: Sequence[Arrays], references: Sequence[Reference]) -> float:
    """The largest error of onnxruntime in any of its outputs."""
    run, errors = load_onnx(path, threads=1), []
    for arrays, exact in zip(inputs, references, strict=True):
        parity = compare(run(**arrays), exact, "float32")
        if not parity.accepted:
            sizes = {name: array.shape for name, array in arrays.items()}
            raise ArithmeticError(f"{path.name}: with inputs {sizes}, onnxruntime: {parity.reason}")
        errors.append(parity.max_abs_error)
    return max(errors)


def _row(
    params: ExportParams,
    network: Network,
    path: Path,
    graph: onnx.ModelProto,
    error: float,
    references: Sequence[Reference],
) -> ExportRow:
    stored = [*graph.graph.initializer, *(sparse.values for sparse in graph.graph.sparse_initializer)]
    return ExportRow(
        model=params.cell,
        kind=network.kind,
        form=network.form,
        sparsity=network.sparsity,
        file=path.name,
        sparse_initializers=bool(graph.graph.sparse_initializer),
        opset=params.opset,
        parameters=sum(math.prod(t.dims) for t in stored if t.dims and t.data_type == onnx.TensorProto.FLOAT),
        bytes=path.stat().st_size,
        max_abs_error=error,
        torch_error=max(exact.torch_error for exact in references),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the messages of torch's exporter, which are for its developers."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
