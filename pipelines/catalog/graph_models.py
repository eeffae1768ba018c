"""Exported graphs as MLflow models, for `mlflow models serve` and `mlflow.pyfunc.load_model`.

The smallest exact form of each network is in the model registry as well: one version for each cell that
exported it, with the alias `current` on the version that is in `models/onnx/` now.

Everything goes through the client: `mlflow.onnx.log_model` would use the process's global tracking URI and
active run. The module is a :class:`~pipelines.engine.tracking.ModelLog`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from pipelines.engine.artifact_paths import SQLITE
from pipelines.engine.execution import temporary_directory
from singleshot.export.onnx_model import AgentScore, GraphCard, read_card
from singleshot.export.parity import random_inputs
from singleshot.io.hashing import sha256_of
from singleshot.pruning.variant import percentage
from singleshot.secrets import without_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run
    from mlflow.models import ModelSignature

SUFFIX = ".onnx"
REGISTERED_FORMS = ("dense", "compacted")
"""The smallest exact form of a network that was never pruned, and of a pruned one."""
CURRENT = "current"
TABLE = "| | |\n|---|---|\n"
"""Beginning of the descriptions that are written here."""
EXAMPLE_SIZES = {"batch": 1, "height": 32, "width": 32}
"""Sizes of an input example along the axes that take any size."""


def log_model(client: "MlflowClient", run: "Run", path: Path) -> None:
    """Log a graph that this project exported as a model of `run`. Further calls reuse the same model.

    Raises:
        UserError: the file is damaged, or another project wrote it.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    card = read_card(path)
    model = _open(client, run, path, card)
    if model.status == LoggedModelStatus.READY:
        return
    with temporary_directory() as scratch:
        directory = scratch / "model"
        _save(model, onnx.load(path), card, directory)
        client.log_model_artifacts(model.model_id, str(directory))
    outputs = client.get_run(run.info.run_id).outputs
    if outputs is None or model.model_id not in {output.model_id for output in outputs.model_outputs}:
        client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step=0)])
    if card.form in REGISTERED_FORMS:
        _register(client, run, model, card)
    # Last, so that a model that is READY is complete.
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def follow_files(
    client: "MlflowClient",
    experiment_id: str,
    graphs: Iterable[Path],
    measured: Callable[[GraphCard], Mapping[str, str]],
) -> list[Path]:
    """Point the alias `current` of registered models to the versions that are in files, e.g. after DVC has
    restored the files of an earlier configuration. What was deleted from the registry is registered again.

    Descriptions get the size of the file and what was `measured` of its network, unless a person has written
    another.

    Returns:
        the files that were never logged as models of the experiment.
    """
    unknown = []
    for path in graphs:
        card = read_card(path)
        if card.form not in REGISTERED_FORMS:
            continue
        found = client.search_logged_models([experiment_id], f"tags.sha256 = '{sha256_of(path)}'")
        if found:
            _register(client, client.get_run(str(found[0].source_run_id)), found[0], card)
            _describe(client, card, {"bytes": f"{path.stat().st_size:,}", **measured(card)})
        else:
            unknown.append(path)
    return unknown


def set_current(client: "MlflowClient", run: "Run") -> None:
    """Point the alias `current` to the version that `run` exported."""
    for version in client.search_model_versions(f"run_id = '{run.info.run_id}'"):
        client.set_registered_model_alias(version.name, CURRENT, version.version)


def _register(client: "MlflowClient", run: "Run", model: "LoggedModel", card: GraphCard) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode

    name = _name(card)
    if not client.search_model_versions(f"run_id = '{run.info.run_id}'"):
        tags = _facts(card) | {"kind": card.kind, "form": card.form, "sparsity": f"{card.sparsity:g}"}
        try:
            client.create_registered_model(name, tags, _description(card, client.tracking_uri, {}))
        except MlflowException as error:
            if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
                raise
        version = client.create_model_version(
            name,
            f"models:/{model.model_id}",
            run.info.run_id,
            tags,
            description=f"Exported at commit {card.commit} from a file of SHA-256 {card.source_sha256}.",
            await_creation_for=0,
            model_id=model.model_id,
        )
        registered = json.dumps([{"name": name, "version": version.version}])
        # This tag links the model's page to the page of its version.
        client.set_logged_model_tags(model.model_id, {"mlflow.modelVersions": registered})
    set_current(client, run)


def _name(card: GraphCard) -> str:
    return card.cell.replace("/", "-")  # MLflow allows no slashes


def _describe(client: "MlflowClient", card: GraphCard, measured: Mapping[str, str]) -> None:
    description = _description(card, client.tracking_uri, measured)
    written = client.get_registered_model(_name(card)).description or ""
    if written != description and written.startswith(TABLE):
        client.update_registered_model(_name(card), description)


def _description(card: GraphCard, uri: str, measured: Mapping[str, str]) -> str:
    """A graph's card as Markdown, for the page of its registered model in the store at `uri`."""
    shapes = {each.name: f" {' x '.join(map(str, each.shape))}" for each in card.inputs}
    pruned = f", {percentage(card.sparsity)}% of the weights pruned before training" if card.sparsity else ""
    rows = {
        "network": f"`{card.cell}`",
        "kind": card.kind,
        "form": f"{card.form}{pruned}",
        **({"score": _score(card.score)} if card.score else {}),
        **measured,
        "licence": card.licence,
        **{
            f"`{each}`{shapes.get(each, '')}": card.meanings.get(each, "")
            for each in (*shapes, *card.outputs)
        },
        **_facts(card),
    }
    if id_ := (card.details.get("environment_spec") or {}).get("id"):
        rows["environment"] = f"`{id_}` of Gymnasium"
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    if uri.startswith(SQLITE):  # a relative path would be another database in another directory
        uri = f"{SQLITE}{Path(uri.removeprefix(SQLITE)).absolute()}"
    sizes = _example_sizes(card)
    arrays = ", ".join(f"{each.name!r}: numpy.zeros({each.shape_at(sizes)})" for each in card.inputs)
    return (
        f"{TABLE}{table}\n\n`pip install mlflow onnxruntime`, then:\n\n```python\nimport mlflow, numpy\n\n"
        f"mlflow.set_tracking_uri({without_secrets(uri)!r})\n"
        f"model = mlflow.pyfunc.load_model('models:/{_name(card)}@{CURRENT}')\n"
        f"model.predict({{{arrays}}})\n```"
    )


def _score(score: AgentScore) -> str:
    return (
        f"{score}; 0 is a random policy, 100 D4RL's expert" if score.measure == "D4RL score" else str(score)
    )


def _facts(card: GraphCard) -> dict[str, str]:
    return {key: str(value) for key, value in card.details.items() if isinstance(value, str | int | float)}


def _open(client: "MlflowClient", run: "Run", path: Path, card: GraphCard) -> "LoggedModel":
    """The MLflow model of this run and file; a killed driver may have created it without its files."""
    name = path.stem.replace(".", "_")  # MLflow allows no dots
    found = client.search_logged_models(
        [run.info.experiment_id], f"source_run_id = '{run.info.run_id}' AND name = '{name}'"
    )
    if found:
        return found[0]
    tags = {"kind": card.kind, "cell": card.cell, "form": card.form, "sparsity": f"{card.sparsity:g}"}
    tags |= {"sha256": sha256_of(path)}
    return client.create_logged_model(run.info.experiment_id, name, run.info.run_id, tags)


def _save(model: "LoggedModel", graph: onnx.ModelProto, card: GraphCard, directory: Path) -> None:
    import mlflow.onnx
    from mlflow.models import Model

    mlflow.onnx.save_model(
        graph,
        directory,
        mlflow_model=Model(
            artifact_path=model.artifact_location,
            run_id=model.source_run_id,
            model_uuid=model.model_id,
            model_id=model.model_id,
        ),
        signature=signature(graph),
        input_example=example(card),
        # By default MLflow infers them by running the model in a separate process, which takes seconds.
        pip_requirements=mlflow.onnx.get_default_pip_requirements(),
        onnx_execution_providers=["CPUExecutionProvider"],
        save_as_external_data=False,
    )


def signature(graph: onnx.ModelProto) -> "ModelSignature":
    """Names, types and shapes of a graph's outputs; -1 along axes that take any size.

    With a schema of the inputs, MLflow would refuse float64, which Gymnasium's observations are; without one,
    it converts them. The model's description has the inputs.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    def spec(value: onnx.ValueInfoProto) -> TensorSpec:
        tensor = value.type.tensor_type
        # A dimension with a name in place of a size has the value 0.
        shape = tuple(dim.dim_value or -1 for dim in tensor.shape.dim)
        return TensorSpec(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape, value.name)

    return ModelSignature(outputs=Schema([spec(value) for value in graph.graph.output]))


def example(card: GraphCard) -> dict[str, NDArray[np.float32]]:
    """Small example inputs, rounded to multiples of 1/4 so that their JSON is short."""
    inputs = random_inputs(card.inputs, _example_sizes(card), seed=0)
    return {name: (np.round(4 * values) / 4).astype(np.float32) for name, values in inputs.items()}


def _example_sizes(card: GraphCard) -> Mapping[str, Any]:
    """Sizes of an example's axes; a card's details have the samples with which its agent was evaluated."""
    return {**EXAMPLE_SIZES, **card.details}
