"""The step `animate` has a cell for each agent shown, and one for each environment and algorithm."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from pipelines.catalog.agents import agents, environment_of, episode_of, name_of, tags_of
from pipelines.catalog.paths import ANIMATIONS
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from singleshot.pruning.variant import DENSE, percentage
from singleshot.rl.agents import AgentSpec
from singleshot.rl.evaluation.drawing import Caption
from tasks.animate import AnimateParams, animate
from tasks.reporting.look import OTHER, PRUNERS, name, ordered

MOST_PRUNERS = 3
"""Largest number of pruned agents beside the dense one, as four lanes can be watched at once."""

SECONDS, SECONDS_ALONE = 20, 10
"""Seconds of agents side by side, after which the distances between HalfCheetahs tell how they differ, and of
one agent by itself."""


def run(step: Step, config: Config) -> None:
    """Write `animation.mp4` and `still.jpg` for each environment and algorithm, and for each agent."""
    step.compute(list(_cells(config)), ANIMATIONS)


def _cells(config: Config) -> Iterator[Cell]:
    for (environment, algorithm), together in groupby(
        _shown(config), lambda agent: (agent.environment, agent.algorithm)
    ):
        lanes = list(together)
        tags = {"environment": environment, "algorithm": algorithm}
        yield _cell(f"{environment}/{algorithm}", lanes, SECONDS, tags)
        for agent in lanes:
            yield _cell(name_of(agent), [agent], SECONDS_ALONE, tags_of(agent))


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


def _cell(name: str, lanes: Sequence[AgentSpec], seconds: float, tags: dict[str, str]) -> Cell:
    captions = tuple(_caption(agent) for agent in lanes)
    inputs = {caption.label: episode_of(agent) for caption, agent in zip(captions, lanes, strict=True)}
    return Cell(name, animate, AnimateParams(captions, seconds), inputs, tags)


def _caption(agent: AgentSpec) -> Caption:
    label = DENSE if agent.pruner == DENSE else f"{name(agent.pruner)}, {percentage(agent.sparsity)}% pruned"
    return Caption(label, PRUNERS.get(agent.pruner, OTHER))
