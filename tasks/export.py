"""Tasks: export networks as ONNX files, checked and compared with the original."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import onnx
import pandas
from annotated_types import Ge

from singleshot.export.classifier import ClassifierName, ClassifierSource, fetch_classifier, save_classifier
from singleshot.export.model_files import open_network
from singleshot.export.parity import Reference, compare, random_inputs, reference
from singleshot.export.runtimes.protocol import Arrays
from singleshot.io.onnx_model import AgentScore, Form, Kind, load_onnx
from singleshot.io.tables import write_csv
from singleshot.io.to_onnx import Network, card_of, to_onnx, with_sparse_initializers
from singleshot.job import Event, Job, Metrics, per_job
from singleshot.rl.agents import load_agent
from singleshot.rl.environments import Environment
from singleshot.rl.policies import forms_of, policy_network
from tasks.reporting.scores import agent_scores
from tasks.reporting.statistics import BootstrapConfig, t_half_width

FLOAT = onnx.TensorProto.FLOAT
COMPARED: Mapping[Kind, Sequence[Mapping[str, int]]] = {
    "policy": [{"batch": batch, "samples": samples} for batch, samples in [(1, 10), (8, 3), (256, 1)]],
    "style": [
        {"batch": batch, "height": height, "width": width}
        for batch, height, width in [(1, 64, 64), (2, 61, 75), (3, 38, 5)]
    ],
    "classifier": [{"batch": batch} for batch in (1, 3)],
}
"""Input sizes at which every file is compared with the network it was made from."""


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


def graph_name(cell: str, form: Form | Literal["sparse"]) -> str:
    """Name of a network's file, e.g. `hopper-bcq-snip-0.95-seed-0-compacted.onnx`."""
    suffix = f"-{form}" if form in ("compacted", "sparse") else ""
    return f"{cell.replace('/', '-').lower()}{suffix}.onnx"


@dataclass(frozen=True)
class ClassifierParams:
    """The classifier to export, and how."""

    architecture: ClassifierName
    weights: ClassifierSource
    export: ExportParams


@per_job
def export_policy(job: Job) -> Iterator[Event]:
    """Export a job's agent (:class:`ExportParams`), in every form it has.

    Inputs are `source`, an `agent.safetensors`, and `scores`, its evaluations (`scores.csv`), of which
    the last ones make its score. The output gets a graph for each form, named by :func:`graph_name`, and
    `exports.csv` (:class:`ExportRow`). Equal parameters and inputs give equal bytes. Metrics have the form at
    the end of their names.

    Raises:
        UserError: the input holds no agent.
        ArithmeticError: a graph computes something else than the network.
    """
    source, scores = job.inputs["source"], pandas.read_csv(job.inputs["scores"])
    agent = load_agent(source)
    networks = [policy_network(agent, form) for form in forms_of(agent.spec)]
    scored = None if scores.empty else score_of(scores, agent.environment)
    return _export(job, job.params, source, networks, scored)


@per_job
def export_style(job: Job) -> Iterator[Event]:
    """Export a job's style (:class:`ExportParams`).

    The input is `source`, a style's `model.safetensors`; outputs and errors are the same as in
    :func:`export_policy`.
    """
    source = job.inputs["source"]
    return _export(job, job.params, source, [open_network(source)])


@per_job
def export_classifier(job: Job) -> Iterator[Event]:
    """Fetch a job's classifier (:class:`ClassifierParams`) and export it.

    There are no inputs. The output gets `classifier.safetensors`
    (see :func:`~singleshot.export.classifier.load_classifier`), its graph and `exports.csv`, as from
    :func:`export_policy`.

    Raises:
        UserError: the weights can't be fetched.
        ArithmeticError: the graph computes something else than the network.
    """
    params: ClassifierParams = job.params
    source = job.output / "classifier.safetensors"
    module, card = fetch_classifier(params.architecture, params.weights)
    save_classifier(module, card, source)
    return _export(job, params.export, source, [open_network(source)])


def _export(
    job: Job, params: ExportParams, source: Path, networks: Sequence[Network], score: AgentScore | None = None
) -> Iterator[Event]:
    """Write `networks`, all forms of the network in `source`, and `exports.csv`, with a row for each file.

    Each form is compared with the first.

    Raises:
        ArithmeticError: onnxruntime's outputs for a file are off by more than rounding explains.
    """
    rows: list[ExportRow] = []
    dense = networks[0].card
    inputs = [random_inputs(dense.inputs, sizes, seed=0) for sizes in COMPARED[dense.kind]]
    references = [reference(networks[0], arrays) for arrays in inputs]
    for network in networks:
        card = card_of(network, params.cell, job.commit, source, score)
        graph = to_onnx(network, card, params.opset)
        graphs: dict[Form | Literal["sparse"], onnx.ModelProto] = {card.form: graph}
        if params.sparse_initializers and card.form == "masked":
            graphs["sparse"] = with_sparse_initializers(graph)
        for form, made in graphs.items():
            path = job.output / graph_name(params.cell, form)
            onnx.save(made, path)
            stored = [*made.graph.initializer, *(sparse.values for sparse in made.graph.sparse_initializer)]
            numbers = [math.prod(each.dims) for each in stored if each.dims and each.data_type == FLOAT]
            row = ExportRow(
                model=params.cell,
                kind=card.kind,
                form=card.form,
                sparsity=card.sparsity,
                file=path.name,
                sparse_initializers=bool(made.graph.sparse_initializer),
                opset=params.opset,
                parameters=sum(numbers),
                bytes=path.stat().st_size,
                max_abs_error=_largest_error(path, inputs, references),
                torch_error=max(exact.torch_error for exact in references),
            )
            rows.append(row)
            measured = ("bytes", "parameters", "max_abs_error")
            yield Metrics(0, {f"{name}_{form}": getattr(row, name) for name in measured})
    write_csv(job.output / "exports.csv", ExportRow, rows)


def _largest_error(path: Path, inputs: Sequence[Arrays], references: Sequence[Reference]) -> float:
    run, errors = load_onnx(path, threads=1), []
    for arrays, exact in zip(inputs, references, strict=True):
        parity, reason = compare(run(**arrays), exact, "float32")
        if reason:
            sizes = {name: array.shape for name, array in arrays.items()}
            raise ArithmeticError(f"{path.name}: with inputs {sizes}, onnxruntime: {reason}")
        errors.append(parity.max_abs_error or 0.0)
    return max(errors)


def score_of(evaluations: pandas.DataFrame, environment: Environment | None) -> AgentScore:
    """An agent's score in its training, with an interval by Student's t over its last evaluations."""
    (score,) = agent_scores(evaluations, ["seed"]).itertuples()
    low = high = None
    if score.evaluations > 1:
        half = t_half_width(score.spread, score.evaluations, BootstrapConfig())
        low, high = score.d4rl_score - half, score.d4rl_score + half
    last = float(evaluations.sort_values("update")["d4rl_score"].iloc[-1])
    referenced = environment and environment.reference_returns
    return AgentScore(
        "D4RL score" if referenced else "return", score.d4rl_score, low, high, score.evaluations, last
    )
