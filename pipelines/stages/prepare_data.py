"""The stage `prepare_data` has one cell for each task."""

from pipelines.catalog.paths import DATASETS, EXPERTS
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Stage
from singleshot.rl.environments import TaskName
from tasks.prepare_dataset import DatasetParams, prepare_dataset


def run(stage: Stage, config: Config) -> None:
    """Write `data/offline_rl/<task>/`: transitions, a card and, for rollouts, a Minari dataset."""
    stage.compute([cell(config, task) for task in config.offline_rl.sweep.tasks], DATASETS)


def cell(config: Config, task: TaskName) -> Cell:
    """The cell that makes the dataset of a task."""
    offline_rl = config.offline_rl
    params = DatasetParams.of(task, offline_rl.evaluation.env_version, offline_rl.data)
    inputs = params.inputs(EXPERTS / f"{task.lower()}.safetensors")
    return Cell(task, prepare_dataset, params, inputs, tags={"task": task, "source": offline_rl.data.source})
