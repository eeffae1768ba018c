"""Stage `quantize`: one cell an agent of the highest sparsity; its score and bytes with rounded values."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from pipelines.agents import AGENTS, agents, name_of, tags_of, training_config
from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from tasks.offline_rl.agents import AgentSpec
from tasks.offline_rl.quantize_agent import QuantizeParams, quantize_agent

QUANTIZED = Path("results/sparse/quantized.csv")
PARTS = Path("build/quantize")


def run(stage: Stage) -> None:
    """Leave `quantized.csv`."""
    directories = stage.compute([_cell(stage.config, agent) for agent in _chosen(stage.config)], PARTS)
    stage.tabulate([directory / "quantized.csv" for directory in directories], QUANTIZED)
    shutil.rmtree(PARTS)


def _chosen(config: Config) -> Iterator[AgentSpec]:
    """All pruners: a rounded weight may cost more where another one left fewer of them."""
    sweep = config.offline_rl.sweep
    seeds = list(dict.fromkeys(sweep.seeds))[: config.offline_rl.quantization.seeds]
    return (
        agent for agent in agents(config) if agent.sparsity == max(sweep.sparsities) and agent.seed in seeds
    )


def _cell(config: Config, agent: AgentSpec) -> Cell:
    offline_rl = config.offline_rl
    updates = training_config(config, agent).updates
    params = QuantizeParams(agent, offline_rl.quantization.values, offline_rl.evaluation, updates)
    inputs = {"agent": AGENTS / name_of(agent) / "agent.safetensors"}
    return Cell(name_of(agent), quantize_agent, params, inputs, tags_of(agent))
