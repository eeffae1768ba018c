"""Stage `train`: one cell an agent of the sweep, trained under its mask and scored as it trains."""

import json
from pathlib import Path

import pandas

from pipelines.agents import (
    AGENTS,
    MASKS,
    agents,
    algorithm_config,
    dataset_of,
    name_of,
    tags_of,
    training_config,
)
from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from tasks.offline_rl.agents import DENSE, AgentSpec
from tasks.offline_rl.training import TrainParams, train
from tasks.pruning.variant import variant_name

SCORES = Path("results/offline_rl/scores.csv")
SUMMARY = Path("results/offline_rl/summary.json")


def run(stage: Stage) -> None:
    """Leave `models/agents/<agent>/`, every evaluation in `scores.csv`, and the last ones' means."""
    cells = [cell(stage.config, agent) for agent in agents(stage.config)]
    directories = stage.compute(cells, AGENTS, gpu=True)
    stage.tabulate([directory / "scores.csv" for directory in directories], SCORES)
    SUMMARY.write_text(json.dumps(_summary(pandas.read_csv(SCORES)), indent=2) + "\n")


def cell(config: Config, agent: AgentSpec) -> Cell:
    """An agent's training, under its masks unless it is dense."""
    offline_rl = config.offline_rl
    algorithm = algorithm_config(config, agent)
    params = TrainParams(
        agent,
        algorithm,
        training_config(config, agent),
        offline_rl.evaluation,
        offline_rl.pruning.reinitialize,
        offline_rl.execution,
    )
    inputs = {"dataset": dataset_of(agent)}
    if agent.pruner != DENSE:
        inputs["masks"] = MASKS / name_of(agent) / "masks.safetensors"
    return Cell(
        name_of(agent), train, params, inputs, tags_of(agent), stack=f"{agent.task}/{agent.algorithm}"
    )


def _summary(scores: pandas.DataFrame) -> dict[str, float]:
    """What `dvc metrics` shows: by agent, the mean over seeds of the D4RL score after the last update."""
    last = scores[scores["update"] == scores.groupby("algorithm")["update"].transform("max")]
    means = last.groupby(["task", "algorithm", "pruner", "sparsity"])["d4rl_score"].mean()
    return {
        f"{task}/{algorithm}/{variant_name(str(pruner), sparsity)}": round(score, 2)
        for (task, algorithm, pruner, sparsity), score in means.items()
    }
