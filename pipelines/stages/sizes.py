"""Stage `sizes`: one cell a trained agent; its networks' bytes in every storage format (Table 1)."""

import shutil
from pathlib import Path

from pipelines.agents import AGENTS, agents, name_of, tags_of
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Stage
from tasks.offline_rl.agents import AgentSpec
from tasks.sparse.measure_sizes import SizeParams, measure_sizes

SIZES = Path("results/sparse/sizes.csv")
PARTS = Path("build/sizes")


def run(stage: Stage) -> None:
    """Leave `sizes.csv`."""
    directories = stage.compute([_cell(agent) for agent in agents(stage.config)], PARTS, brief=True)
    stage.tabulate([directory / "sizes.csv" for directory in directories], SIZES)
    shutil.rmtree(PARTS)


def _cell(agent: AgentSpec) -> Cell:
    params = SizeParams(f"{agent.task}/{agent.algorithm}", agent.pruner, agent.sparsity, agent.seed)
    inputs = {"model": AGENTS / name_of(agent) / "agent.safetensors"}
    return Cell(name_of(agent), measure_sizes, params, inputs, tags_of(agent))
