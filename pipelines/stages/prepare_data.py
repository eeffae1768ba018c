"""Stage `prepare_data`: one cell a task; its transitions, from whichever source is configured."""

from pathlib import Path

from pipelines.agents import DATASETS
from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from tasks.offline_rl.environments import TaskName
from tasks.offline_rl.prepare_dataset import DatasetParams, prepare_dataset

EXPERTS = Path("experts")


def run(stage: Stage) -> None:
    """Leave `data/offline_rl/<task>/`: transitions, a card, and rollouts as a Minari dataset too."""
    stage.compute([cell(stage.config, task) for task in stage.config.offline_rl.sweep.tasks], DATASETS)


def cell(config: Config, task: TaskName) -> Cell:
    """The dataset of a task."""
    offline_rl = config.offline_rl
    params = DatasetParams.of(task, offline_rl.evaluation.env_version, offline_rl.data)
    inputs = params.inputs(EXPERTS / f"{task.lower()}.safetensors")
    return Cell(task, prepare_dataset, params, inputs, tags={"task": task, "source": offline_rl.data.source})
