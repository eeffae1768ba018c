"""The step `quantize` has one cell for each agent of the highest sparsity."""

from collections.abc import Iterator

from pipelines.catalog.agents import (
    agents,
    environment_of,
    model_of,
    modules_of,
    name_of,
    tags_of,
    training_config,
)
from pipelines.catalog.paths import QUANTIZED
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from singleshot.rl.agents import AgentSpec
from tasks.quantize_agent import QuantizeParams, quantize_agent
from tasks.tables import concatenate


def run(step: Step, config: Config) -> None:
    """Write `quantized.csv`."""
    directories = step.compute([cell(config, agent) for agent in _chosen(config)])
    concatenate([directory / "quantized.csv" for directory in directories], QUANTIZED)


def _chosen(config: Config) -> Iterator[AgentSpec]:
    """The agents of all pruners: rounding may cost more where a pruner kept fewer weights of a layer."""
    sweep = config.offline_rl.sweep
    seeds = list(dict.fromkeys(sweep.seeds))[: config.offline_rl.quantization.seeds]
    return (
        agent
        for agent in agents(config)
        if agent.sparsity == max(sweep.sparsities)
        and agent.seed in seeds
        and environment_of(config, agent).id
    )


def cell(config: Config, agent: AgentSpec) -> Cell:
    """The cell that packs an agent with each kind of values and scores it."""
    offline_rl = config.offline_rl
    updates = training_config(config, agent).updates
    params = QuantizeParams(
        agent, environment_of(config, agent), offline_rl.quantization.values, offline_rl.evaluation, updates
    )
    inputs = {"agent": model_of(agent)}
    return Cell(name_of(agent), quantize_agent, params, inputs, tags_of(agent), modules=modules_of(agent))
