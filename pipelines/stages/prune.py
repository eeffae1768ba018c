"""Stage `prune`: one cell a pruned agent of the sweep; its masks, before any training."""

from pathlib import Path

from pipelines.agents import MASKS, algorithm_config, dataset_of, name_of, pruned_agents, tags_of
from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from tasks.offline_rl.agents import AgentSpec
from tasks.offline_rl.prune_agent import PruneParams, prune_agent

LAYERS = Path("results/pruning/layers.csv")


def run(stage: Stage) -> None:
    """Leave `models/masks/<agent>/` and what each mask leaves of each layer, in `layers.csv`."""
    cells = [cell(stage.config, agent) for agent in pruned_agents(stage.config)]
    directories = stage.compute(cells, MASKS)
    stage.tabulate([directory / "layers.csv" for directory in directories], LAYERS)


def cell(config: Config, agent: AgentSpec) -> Cell:
    """The masks of a pruned agent."""
    params = PruneParams(agent, algorithm_config(config, agent), config.offline_rl.pruning)
    return Cell(name_of(agent), prune_agent, params, {"dataset": dataset_of(agent)}, tags_of(agent))
