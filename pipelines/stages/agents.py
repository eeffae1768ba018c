"""The stage `agents`: the masks of pruned agents, and all agents, trained and scored."""

import json
from pathlib import Path

import pandas

from pipelines.catalog.agents import (
    AGENT_TAGS,
    agents,
    algorithm_config,
    dataset_of,
    environment_of,
    heldout_of,
    masks_of,
    modules_of,
    name_of,
    pruned_agents,
    tags_of,
    training_config,
)
from pipelines.catalog.paths import AGENTS, HELDOUT, LAYERS, MASKS, SCORES
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from singleshot.pruning.pruners import module_of
from singleshot.pruning.variant import DENSE, variant_name
from singleshot.rl.agents import AgentSpec
from tasks.prune_agent import PruneParams, prune_agent
from tasks.reporting.scores import agent_scores
from tasks.tables import concatenate
from tasks.train_agents import HeldoutRow, TrainParams, train

SUMMARY = Path("results/offline_rl/summary.json")


@step("prune", tags=AGENT_TAGS, tables=(LAYERS,))
def prune_agents(work: Work, config: Config) -> None:
    """Make the masks of every pruned agent of the sweep, before any training.

    `layers.csv` has the number of weights that each mask keeps of each layer.
    """
    directories = work.compute([prune_cell(config, agent) for agent in pruned_agents(config)], MASKS)
    concatenate([directory / "layers.csv" for directory in directories], LAYERS)


def prune_cell(config: Config, agent: AgentSpec) -> Cell:
    """The cell that makes the masks of a pruned agent."""
    params = PruneParams(agent, algorithm_config(config, agent), config.offline_rl.pruning)
    inputs = {"dataset": dataset_of(config, agent)}
    assert agent.mask_pruner is not None
    modules = (*modules_of(agent), module_of(agent.mask_pruner))
    return Cell(name_of(agent), prune_agent, params, inputs, tags_of(agent), modules=modules)


@step(
    "train",
    tags=AGENT_TAGS,
    metrics=("d4rl_score", "return_mean", "updates_per_second"),
    groups=("agent",),
    tables=(SCORES,),
)
def train_agents(work: Work, config: Config) -> None:
    """Train every agent of the sweep under its mask, and score it as it trains.

    Steps are updates. `d4rl_score`: 0 is a random policy, 100 is D4RL's expert. `return_mean`: the mean
    return of the episodes played after that update. The charts average over seeds. `scores.csv` has all
    evaluations.
    """
    cells = [train_cell(config, agent) for agent in agents(config)]
    directories = work.compute(cells, AGENTS, gpu=True, start_ray=True)
    concatenate([directory / "scores.csv" for directory in directories], SCORES)
    # Agents without an environment have held-out losses instead of scores.
    heldout = [path for directory in directories if (path := directory / "heldout.csv").exists()]
    concatenate(heldout, HELDOUT, HeldoutRow)
    SUMMARY.write_text(json.dumps(_summary(pandas.read_csv(SCORES)), indent=2) + "\n", encoding="utf-8")


def train_cell(config: Config, agent: AgentSpec) -> Cell:
    """The cell that trains an agent, under its masks if it begins with any."""
    offline_rl = config.offline_rl
    environment = environment_of(config, agent)
    params = TrainParams(
        agent,
        environment,
        algorithm_config(config, agent),
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


STEPS = (prune_agents, train_agents)
