"""Networks as ONNX files: checked, compared with the original, and the same bytes wherever they are made."""

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

from tasks.data.hashing import sha256_of
from tasks.data.tables import write_csv
from tasks.deployment.network import Network
from tasks.deployment.onnx_model import Form, GraphCard, Kind, load_onnx
from tasks.deployment.parity import Reference, compare, random_inputs, reference
from tasks.deployment.runtimes.protocol import Arrays
from tasks.job import Event, Job, Metrics

COMPARED: Mapping[Kind, Sequence[Mapping[str, int]]] = {
    "policy": [{"batch": batch, "samples": samples} for batch, samples in [(1, 10), (8, 3), (256, 1)]],
    "style": [
        {"batch": batch, "height": height, "width": width}
        for batch, height, width in [(1, 64, 64), (2, 61, 75), (3, 38, 5)]
    ],
    "classifier": [{"batch": batch} for batch in (1, 3)],
}
"""At which every file is compared with the network it was made from."""
EXAMPLE = {"batch": 2, "samples": 3, "height": 24, "width": 20}
"""At which networks are traced: not 0 or 1, which torch.export takes for constants, and sides that styles
don't pad, or it takes the padding for a constant."""


@dataclass(frozen=True)
class ExportParams:
    """How a network becomes ONNX files."""

    cell: str
    """Of the network, e.g. `HalfCheetah/bcq/snip-0.95/seed-0`; its files are named after it."""
    opset: Annotated[int, Ge(18)]
    """Version of ONNX's operators."""
    sparse_initializers: bool = False
    """Write pruned networks once more, in fewer bytes; not every runtime reads that."""


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
    """Stored weights and biases; with sparse initialisers, zeros aren't."""
    bytes: int
    max_abs_error: float
    """Largest absolute difference of onnxruntime from float64, over all compared inputs."""
    torch_error: float
    """Of float32 in PyTorch likewise; a compacted network's is its masked form's."""


def graph_name(cell: str, form: Form, sparse: bool = False) -> str:
    """Name of a network's file, e.g. `hopper-bcq-snip-0.95-seed-0-compacted.onnx`."""
    slug = cell.replace("/", "-").lower()
    suffix = "-sparse" if sparse else "-compacted" if form == "compacted" else ""
    return f"{slug}{suffix}.onnx"


def export(job: Job, params: ExportParams, source: Path, networks: Sequence[Network]) -> Iterator[Event]:
    """Write `networks`, all forms of what `source` holds, and `exports.csv`, a row a file.

    Each is compared with the first. Metrics are by form.

    Raises:
        ArithmeticError: what onnxruntime makes of a file is off by more than rounding explains.
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
    """What a graph says of `network`, the cell's, which `source` holds."""
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
    )


def to_onnx(network: Network, card: GraphCard, opset: int) -> onnx.ModelProto:
    """The network as a graph that passes ONNX's checker and shape inference. Equal arguments, equal bytes."""
    example = tuple(
        torch.zeros([EXAMPLE[size] if isinstance(size, str) else size for size in graph_input.shape])
        for graph_input in network.inputs
    )
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
    assert program is not None  # it is for dynamo=False
    graph = program.model_proto
    _strip(graph)
    card.attach(graph)
    onnx.checker.check_model(graph, full_check=True)
    return graph


def with_sparse_initializers(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with its zeros left out where that takes fewer bytes.

    A kept number takes 12 of them, as ONNX has its place as int64, and stored densely 4.
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
    onnx.checker.check_model(sparse)  # not fully: its shape inference knows of no sparse weights
    return sparse


def _strip(graph: onnx.ModelProto) -> None:
    """Take out what torch's exporter notes of its work, stack traces with absolute paths above all."""
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
            raise ArithmeticError(f"{path.name}: with inputs {sizes}, onnxruntime's {parity.reason}")
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
    """Without what torch's exporter tells its developers."""
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
