"""The stage `measure_agents`: trained agents in motion, their bytes, and their values in fewer bits."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from pipelines.catalog.agents import (
    AGENT_TAGS,
    agents,
    environment_of,
    episode_of,
    model_of,
    modules_of,
    name_of,
    tags_of,
    training_config,
)
from pipelines.catalog.paths import ANIMATIONS, QUANTIZED, SIZES
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from singleshot.pruning.variant import DENSE, percentage
from singleshot.rl.agents import AgentSpec
from singleshot.rl.evaluation.drawing import Caption
from tasks.animate import AnimateParams, animate
from tasks.measure_sizes import measure_sizes
from tasks.quantize_agent import QuantizeParams, quantize_agent
from tasks.reporting.look import OTHER, PRUNERS, name, ordered
from tasks.tables import concatenate

MOST_PRUNERS = 3
"""Largest number of pruned agents beside the dense one, as four lanes can be watched at once."""

SECONDS, SECONDS_ALONE = 20, 10
"""Seconds of agents side by side, after which the distances between HalfCheetahs tell how they differ, and of
one agent by itself."""


@step("animate", tags=AGENT_TAGS)
def animate_agents(work: Work, config: Config) -> None:
    """Draw an episode of trained agents in motion: each alone, and dense beside pruned agents.

    The episode is one of median return in the last evaluation. A run with a tag `pruner` shows a single
    agent.
    """
    work.compute(list(_animations(config)), ANIMATIONS)


def _animations(config: Config) -> Iterator[Cell]:
    for (environment, algorithm), together in groupby(
        _shown(config), lambda agent: (agent.environment, agent.algorithm)
    ):
        lanes = list(together)
        tags = {"environment": environment, "algorithm": algorithm}
        yield _animation(config, f"{environment}/{algorithm}", lanes, SECONDS, tags)
        for agent in lanes:
            yield _animation(config, name_of(agent), [agent], SECONDS_ALONE, tags_of(agent))


def _shown(config: Config) -> Iterator[AgentSpec]:
    """The agents of the first seed that are dense or have the highest sparsity."""
    sweep = config.offline_rl.sweep
    pruners = {DENSE, *ordered(list(sweep.pruners), PRUNERS)[:MOST_PRUNERS]}
    sparsities = {0.0, max(sweep.sparsities)}
    return (
        agent
        for agent in agents(config)
        if environment_of(config, agent).id
        and agent.seed == sweep.seeds[0]
        and agent.sparsity in sparsities
        and agent.pruner in pruners
    )


def _animation(
    config: Config, cell: str, lanes: Sequence[AgentSpec], seconds: float, tags: dict[str, str]
) -> Cell:
    labels = (
        DENSE if each.pruner == DENSE else f"{name(each.pruner)}, {percentage(each.sparsity)}% pruned"
        for each in lanes
    )
    captions = tuple(
        Caption(label, PRUNERS.get(each.pruner, OTHER)) for label, each in zip(labels, lanes, strict=True)
    )
    inputs = {caption.label: episode_of(agent) for caption, agent in zip(captions, lanes, strict=True)}
    params = AnimateParams(environment_of(config, lanes[0]), captions, seconds)
    return Cell(cell, animate, params, inputs, tags)


@step("sizes", tags=AGENT_TAGS, tables=(SIZES,))
def measure_bytes(work: Work, config: Config) -> None:
    """Measure the bytes of every trained agent's networks in each storage format.

    The bytes are in `sizes.csv`, where `ratio_to_dense` is the bytes of the dense network divided by those of
    the format.
    """
    cells = [
        Cell(name_of(agent), measure_sizes, agent, {"model": model_of(agent)}, tags_of(agent))
        for agent in agents(config)
    ]
    directories = work.compute(cells)
    concatenate([directory / "sizes.csv" for directory in directories], SIZES)


KINDS = ("raw", "fp16", "int8")


@step(
    "quantize",
    tags=AGENT_TAGS,
    metrics=(*(f"d4rl_score_{kind}" for kind in KINDS), *(f"bytes_{kind}" for kind in KINDS)),
    tables=(QUANTIZED,),
)
def quantize_agents(work: Work, config: Config) -> None:
    """Round the values of trained agents to fewer bits, and score the agents again.

    `d4rl_score_<values>` and `bytes_<values>`: the score and the size of the packed agent, for each kind of
    values, of which `raw` keeps all bits. `quantized.csv` has the returns.
    """
    # Agents of all pruners: rounding may cost more where a pruner kept fewer weights of a layer.
    sweep = config.offline_rl.sweep
    seeds = list(dict.fromkeys(sweep.seeds))[: config.offline_rl.quantization.seeds]
    chosen = (
        agent
        for agent in agents(config)
        if agent.sparsity == max(sweep.sparsities)
        and agent.seed in seeds
        and environment_of(config, agent).id
    )
    directories = work.compute([quantize_cell(config, agent) for agent in chosen])
    concatenate([directory / "quantized.csv" for directory in directories], QUANTIZED)


def quantize_cell(config: Config, agent: AgentSpec) -> Cell:
    """The cell that packs an agent with each kind of values and scores it."""
    offline_rl = config.offline_rl
    updates = training_config(config, agent).updates
    params = QuantizeParams(
        agent, environment_of(config, agent), offline_rl.quantization.values, offline_rl.evaluation, updates
    )
    inputs = {"agent": model_of(agent)}
    return Cell(name_of(agent), quantize_agent, params, inputs, tags_of(agent), modules=modules_of(agent))


STEPS = (animate_agents, measure_bytes, quantize_agents)
