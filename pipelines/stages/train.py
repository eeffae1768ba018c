"""The step `train` has one cell for each agent of the sweep."""

import json
from pathlib import Path

import pandas

from pipelines.catalog.agents import (
    agents,
    algorithm_config,
    dataset_of,
    environment_of,
    heldout_of,
    masks_of,
    modules_of,
    name_of,
    tags_of,
    training_config,
)
from pipelines.catalog.paths import AGENTS, HELDOUT, SCORES
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from singleshot.pruning.variant import DENSE, variant_name
from singleshot.rl.agents import AgentSpec
from tasks.reporting.agent_scores import agent_scores
from tasks.tables import concatenate
from tasks.train_agents import HeldoutRow, TrainParams, train

SUMMARY = Path("results/offline_rl/summary.json")


def run(step: Step, config: Config) -> None:
    """Write `models/agents/<agent>/`, all evaluations in `scores.csv`, and each kind of agent's score.

    Agents without an environment have held-out losses instead, in `heldout.csv`.
    """
    cells = [cell(config, agent) for agent in agents(config)]
    directories = step.compute(cells, AGENTS, gpu=True, start_ray=True)
    concatenate([directory / "scores.csv" for directory in directories], SCORES)
    heldout = [path for directory in directories if (path := directory / "heldout.csv").exists()]
    concatenate(heldout, HELDOUT, HeldoutRow)
    SUMMARY.write_text(json.dumps(_summary(pandas.read_csv(SCORES)), indent=2) + "\n", encoding="utf-8")


def cell(config: Config, agent: AgentSpec) -> Cell:
    """The cell that trains an agent, under its masks if it begins with any."""
    offline_rl = config.offline_rl
    algorithm = algorithm_config(config, agent)
    environment = environment_of(config, agent)
    params = TrainParams(
        agent,
        environment,
        algorithm,
        training_config(config, agent),
        offline_rl.evaluation,
        offline_rl.pruning.reinitialize,
        offline_rl.execution,
        "part" if agent.pruner == DENSE else offline_rl.pruning.scope,  # which dense agents do not depend on
    )
    inputs = {"dataset": dataset_of(config, agent)}
    if agent.mask_pruner:
        inputs["masks"] = masks_of(agent)
    if environment.id is None:
        inputs["heldout"] = heldout_of(config, agent)
    return Cell(
        name_of(agent),
        train,
        params,
        inputs,
        tags_of(agent),
        stack=str(agent.unpruned),
        modules=modules_of(agent),
    )


def _summary(scores: pandas.DataFrame) -> dict[str, float]:
    """For `dvc metrics`: the D4RL score of each kind of agent, as a mean over seeds."""
    kind = ["environment", "algorithm", "pruner", "sparsity"]
    means = agent_scores(scores, [*kind, "seed"]).groupby(kind)["d4rl_score"].mean()
    return {
        f"{environment}/{algorithm}/{variant_name(str(pruner), sparsity)}": round(score, 2)
        for (environment, algorithm, pruner, sparsity), score in means.items()
    }
