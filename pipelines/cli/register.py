"""The model registry in MLflow follows the networks in `models/onnx`: their smallest exact forms."""

import contextlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from pipelines.config.params import load_config
from pipelines.engine.tracking import Experiment, TrackingConfig, experiment_name, run_name, tracking
from pipelines.stages import GRAPHS, STAGES
from singleshot.io.onnx_model import GraphCard, read_card
from singleshot.io.whole_file import sha256_of
from singleshot.pruning.variant import percentage

if TYPE_CHECKING:
    from mlflow import MlflowClient

REGISTERED = Path("build/registered.json")
FORMS = ("dense", "compacted")
"""The smallest exact form of a network that was never pruned, and of a pruned one."""
CURRENT = "current"
TRAINED_BY = {"policy": "train", "style": "train_style"}
"""The steps whose runs have trained networks of these kinds."""


def register_graphs() -> None:
    """Point the alias `current` of each network's registered model to its version.

    A version is known by the SHA-256 of its file. If MLflow lacks it, or lacks its files, it is logged to the
    run that trained the network, if there is one.
    """
    from mlflow import MlflowClient

    config, versions = load_config(), {}
    experiment = Experiment(STAGES["register"].about)
    with tracking(config.tracking, "register", config.profile, experiment) as tracker:
        client = MlflowClient()
        for path in sorted(GRAPHS.rglob("*.onnx")):
            card = read_card(path)
            if card.form not in FORMS:
                continue
            run_id = _training_run(client, config.tracking, card) or tracker.run_id
            versions[model_name(card)] = register(client, path, card, run_id)
    REGISTERED.parent.mkdir(exist_ok=True)
    REGISTERED.write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
    print(f"MLflow's registry has the {len(versions)} networks of {GRAPHS}")


def model_name(card: GraphCard) -> str:
    """The name of a network's registered model."""
    return card.cell.replace("/", "-")  # MLflow allows no slashes


def register(client: "MlflowClient", path: Path, card: GraphCard, run_id: str) -> str:
    """Point the alias `current` to the version of a graph, which the run gets if it is new; return it."""
    name, digest = model_name(card), sha256_of(path)
    version = _version(client, name, digest)
    if version is None:
        version = _log(client, path, name, run_id)
        client.update_model_version(name, version, describe(card, path))
        client.set_model_version_tag(name, version, "sha256", digest)
    client.set_registered_model_alias(name, CURRENT, version)
    return version


def _version(client: "MlflowClient", name: str, digest: str) -> str | None:
    from mlflow.exceptions import MlflowException
    from mlflow.models import get_model_info

    for found in client.search_model_versions(f"name = '{name}' and tags.sha256 = '{digest}'"):
        with contextlib.suppress(MlflowException, OSError):  # `mlflow gc` removed them
            get_model_info(f"models:/{name}/{found.version}")
            return str(found.version)
    return None


def _training_run(client: "MlflowClient", config: TrackingConfig, card: GraphCard) -> str | None:
    if card.kind not in TRAINED_BY:
        return None
    experiment = client.get_experiment_by_name(experiment_name(config, TRAINED_BY[card.kind]))
    if experiment is None:
        return None
    name = run_name(card.cell.removeprefix("styles/"))
    query = f"tags.current = 'yes' and attributes.run_name = '{name}'"
    found = client.search_runs([experiment.experiment_id], query, max_results=1)
    return found[0].info.run_id if found else None


def _log(client: "MlflowClient", path: Path, name: str, run_id: str) -> str:
    import mlflow.onnx

    mlflow.set_experiment(experiment_id=client.get_run(run_id).info.experiment_id)
    with contextlib.redirect_stderr(io.StringIO()):  # MLflow's two lines for each network
        info = mlflow.onnx.log_model(
            onnx.load(path),
            name=path.stem.replace(".", "_"),  # MLflow allows no dots
            registered_model_name=name,
            await_registration_for=0,
            # By default MLflow infers them by running the model in a separate process, which takes seconds.
            pip_requirements=mlflow.onnx.get_default_pip_requirements(),
            onnx_execution_providers=["CPUExecutionProvider"],
            save_as_external_data=False,
            run_id=run_id,
        )
    return str(info.registered_model_version)


def describe(card: GraphCard, path: Path) -> str:
    """A graph's card as Markdown."""
    pruned = f", {percentage(card.sparsity)}% of the weights pruned before training" if card.sparsity else ""
    facts = {"network": f"`{card.cell}`", "kind": card.kind, "form": card.form + pruned}
    if card.score:
        facts["score"] = f"{card.score}; of D4RL scores, 0 is a random policy, 100 an expert"
    facts["bytes"] = f"{path.stat().st_size:,}"
    for each in card.inputs:
        shape = " x ".join(map(str, each.shape))
        facts[f"`{each.name}` {shape}"] = card.meanings.get(each.name, "")
    facts |= {f"`{output}`": card.meanings.get(output, "") for output in card.outputs}
    facts |= {key: str(value) for key, value in card.details.items() if isinstance(value, str | int | float)}
    facts |= {"licence": card.licence, "exported at commit": card.commit}
    return "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in facts.items() if value)
