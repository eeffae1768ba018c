"""The step `sizes` has one cell for each trained agent."""

from pipelines.catalog.agents import agents, model_of, name_of, tags_of
from pipelines.catalog.paths import SIZES
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from singleshot.rl.agents import AgentSpec
from tasks.measure_sizes import SizeParams, measure_sizes
from tasks.tables import concatenate


def run(step: Step, config: Config) -> None:
    """Write `sizes.csv` (Table 1)."""
    directories = step.compute([_cell(agent) for agent in agents(config)])
    concatenate([directory / "sizes.csv" for directory in directories], SIZES)


def _cell(agent: AgentSpec) -> Cell:
    params = SizeParams(f"{agent.environment}/{agent.algorithm}", agent.pruner, agent.sparsity, agent.seed)
    return Cell(name_of(agent), measure_sizes, params, {"model": model_of(agent)}, tags_of(agent))
