"""The registry of models in MLflow follows the files in `models/onnx`; its experiments get their order."""

import importlib

from pipelines.catalog.graph_models import follow_files
from pipelines.catalog.measured import measured
from pipelines.catalog.paths import GRAPHS
from pipelines.catalog.stages import WITH_CELLS
from pipelines.config.params import load_config
from pipelines.engine.tracking import experiment_name, mlflow_client, sort_experiments

STEP = "export_onnx"
"""The step that logs the files as models."""

FIRST = ("train", "prepare_data")
"""Steps whose experiments MLflow lists first: what a newcomer looks for."""


def register_graphs() -> None:
    """Point the alias `current` of each network's registered model to the version in `models/onnx`, and
    describe it with what the run has measured; sort the experiments.

    The stage `export` does not run if DVC restores its files from the cache.
    """
    config = load_config().tracking
    with mlflow_client(config) as (client, _):
        sort_experiments(client, config, [*FIRST, *(step for step in all_steps() if step not in FIRST)])
        experiment = client.get_experiment_by_name(experiment_name(config, STEP))
        files = sorted(GRAPHS.rglob("*.onnx"))
        unknown = follow_files(client, experiment.experiment_id, files, measured) if experiment else files
    if unknown:
        print(
            f"{len(unknown)} graphs, e.g. {unknown[0]}, were never recorded in this MLflow; "
            f"`dvc repro --force --single-item export` records them"
        )


def all_steps() -> list[str]:
    """The names of all steps, in the order of dvc.yaml."""
    stages = (importlib.import_module(f"pipelines.stages.{stage}") for stage in WITH_CELLS)
    return [step.name for stage in stages for step in stage.STEPS]
