"""The step `prune` has one cell for each pruned agent of the sweep."""

from pipelines.catalog.agents import algorithm_config, dataset_of, modules_of, name_of, pruned_agents, tags_of
from pipelines.catalog.paths import LAYERS, MASKS
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from singleshot.pruning.pruners import module_of
from singleshot.rl.agents import AgentSpec
from tasks.prune_agent import PruneParams, prune_agent
from tasks.tables import concatenate


def run(step: Step, config: Config) -> None:
    """Write `models/masks/<agent>/`, and `layers.csv` with what each mask keeps of each layer."""
    cells = [cell(config, agent) for agent in pruned_agents(config)]
    directories = step.compute(cells, MASKS)
    concatenate([directory / "layers.csv" for directory in directories], LAYERS)


def cell(config: Config, agent: AgentSpec) -> Cell:
    """The cell that makes the masks of a pruned agent."""
    params = PruneParams(agent, algorithm_config(config, agent), config.offline_rl.pruning)
    inputs = {"dataset": dataset_of(config, agent)}
    assert agent.mask_pruner is not None
    modules = (*modules_of(agent), module_of(agent.mask_pruner))
    return Cell(name_of(agent), prune_agent, params, inputs, tags_of(agent), modules=modules)
