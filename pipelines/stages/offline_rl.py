"""Stages of offline RL: `data`, `agents` and `measure_agents`."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pandas

from pipelines.catalog import paths
from pipelines.catalog.agents import (
    AGENT_TAGS,
    agents,
    algorithm_config,
    dataset_of,
    draw_of,
    environment_of,
    episode_of,
    model_of,
    modules_of,
    name_of,
    tags_of,
    training_config,
)
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from singleshot.io.tables import concatenate
from singleshot.io.whole_file import sha256_of
from singleshot.pruning.masks import module_of
from singleshot.pruning.variant import DENSE, percentage, variant_name
from singleshot.rl.agents import AgentSpec
from singleshot.rl.data.transitions import DataConfig
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.evaluation.drawing import Caption
from tasks.animate import AnimateParams, animate
from tasks.measure_sizes import measure_sizes
from tasks.prepare_dataset import DatasetParams, prepare_dataset
from tasks.prune_agent import PruneParams, prune_agent
from tasks.quantize_agent import QuantizeParams, quantize_agent
from tasks.reporting.look import OTHER, PRUNERS, name, ordered
from tasks.reporting.scores import agent_scores
from tasks.train_agents import HeldoutRow, TrainParams, train

DIGESTS = paths.EXPERTS / "datasets.sha256"
"""Digests of the datasets that the default settings give, in the format of `sha256sum`."""
SUMMARY = Path("results/offline_rl/summary.json")
MOST_PRUNERS = 3
"""Largest number of pruned agents beside the dense one, as four lanes can be watched at once."""
SECONDS, SECONDS_ALONE = 20, 10
"""Seconds of agents side by side, after which the distances between HalfCheetahs tell how they differ, and of
one agent by itself."""
KINDS = ("raw", "fp16", "int8")


@step("prepare_data", tags=("environment", "source"), metrics=("d4rl_score", "return_mean"))
def prepare_data(work: Work, config: Config) -> None:
    """Make each environment's transitions, from rollouts of experts or from Minari's or D4RL's data.

    `d4rl_score`: 0 is a random policy, 100 is D4RL's expert. `return_mean`: the mean return of the episodes
    in the data.
    """
    planned = data_cells(config)
    for cell, directory in zip(planned, work.compute(planned, paths.DATASETS), strict=True):
        failures = json.loads((directory / "card.json").read_text("utf-8"))["failures"]
        if failures:
            used, left_out = len(failures["used"]), len(failures["left_out"])
            print(f"{cell.name}: {used} failed episodes in the data, {left_out} left out of it")
        check_digest(cell.params, directory / "transitions.safetensors")


def data_cells(config: Config) -> list[Cell]:
    """The cells of all datasets that agents of the sweep are trained on, by environment and draw."""
    by_dataset = {dataset_of(config, agent): agent for agent in agents(config)}
    return [data_cell(config, agent) for agent in by_dataset.values()]


def data_cell(config: Config, agent: AgentSpec) -> Cell:
    """The cell that makes the dataset that an agent is trained on."""
    data, draw = config.offline_rl.data, draw_of(config, agent)
    params = DatasetParams.of(agent.environment, environment_of(config, agent), data, draw)
    inputs = params.inputs(paths.EXPERTS / f"{agent.environment.lower()}.safetensors")
    tags = {"environment": agent.environment, "source": data.source}
    name = dataset_of(config, agent).parent.relative_to(paths.DATASETS).as_posix()
    return Cell(name, prepare_dataset, params, inputs, tags)


def check_digest(params: DatasetParams, dataset: Path) -> None:
    """Warn if a dataset of the default settings is not the one whose digest is in the repository."""
    if params != DatasetParams(
        params.name, LOCOMOTION.get(params.name, params.environment), DataConfig(seed=params.data.seed)
    ):
        return
    lines = (line.split() for line in DIGESTS.read_text("utf-8").splitlines())
    known = {path: digest for digest, path in lines}.get(dataset.as_posix())
    found = sha256_of(dataset)
    if known and found != known:
        logging.getLogger(__name__).warning(
            "%s: its SHA-256 is %s…, not %s… as in %s: MuJoCo or NumPy compute otherwise here, and scores "
            "may differ from the documented ones",
            *(dataset, found[:8], known[:8], DIGESTS),
        )


@step("prune", tags=AGENT_TAGS, tables=(paths.LAYERS,))
def prune_agents(work: Work, config: Config) -> None:
    """Make the masks of every pruned agent of the sweep, before any training.

    `layers.csv` has the number of weights that each mask keeps of each layer.
    """
    pruned = (agent for agent in agents(config) if agent.mask_pruner)
    concatenate(work.compute([prune_cell(config, agent) for agent in pruned], paths.MASKS), paths.LAYERS)


def prune_cell(config: Config, agent: AgentSpec) -> Cell:
    """The cell that makes the masks of a pruned agent."""
    pruning = replace(config.offline_rl.pruning, reinitialize=False)  # on which masks do not depend
    params = PruneParams(agent, algorithm_config(config, agent), pruning)
    inputs = {"dataset": dataset_of(config, agent)}
    assert agent.mask_pruner is not None
    modules = (*modules_of(agent), module_of(agent.mask_pruner))
    return Cell(name_of(agent), prune_agent, params, inputs, tags_of(agent), modules=modules)


@step(
    "train",
    tags=AGENT_TAGS,
    metrics=("d4rl_score", "return_mean", "updates_per_second"),
    groups=("agent",),
    tables=(paths.SCORES,),
)
def train_agents(work: Work, config: Config) -> None:
    """Train every agent of the sweep under its mask, and score it as it trains.

    Steps are updates. `d4rl_score`: 0 is a random policy, 100 is D4RL's expert. `return_mean`: the mean
    return of the episodes played after that update. The charts average over seeds. `scores.csv` has all
    evaluations.
    """
    cells = [train_cell(config, agent) for agent in agents(config)]
    directories = work.compute(cells, paths.AGENTS, gpu=True, start_ray=True)
    concatenate(directories, paths.SCORES)
    concatenate(directories, paths.HELDOUT, HeldoutRow)  # of agents without an environment, instead of scores
    SUMMARY.write_text(json.dumps(_summary(pandas.read_csv(paths.SCORES)), indent=2) + "\n", encoding="utf-8")


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
        inputs["masks"] = paths.MASKS / name_of(agent) / "masks.safetensors"
    if environment.id is None:
        inputs["heldout"] = inputs["dataset"].with_name("heldout.safetensors")
    stack, modules = str(agent.unpruned), modules_of(agent)
    return Cell(name_of(agent), train, params, inputs, tags_of(agent), stack, modules=modules)


def _summary(scores: pandas.DataFrame) -> dict[str, float]:
    """For `dvc metrics`: the D4RL score of each kind of agent, as a mean over seeds."""
    kind = ["environment", "algorithm", "pruner", "sparsity"]
    means = agent_scores(scores, [*kind, "seed"]).groupby(kind)["d4rl_score"].mean()
    return {
        f"{environment}/{algorithm}/{variant_name(str(pruner), sparsity)}": round(score, 2)
        for (environment, algorithm, pruner, sparsity), score in means.items()
    }


@step("animate", tags=AGENT_TAGS)
def animate_agents(work: Work, config: Config) -> None:
    """Draw an episode of trained agents in motion: each alone, and dense beside pruned agents.

    The episode is one of median return in the last evaluation. A run with a tag `pruner` shows a single
    agent.
    """
    work.compute(list(_animations(config)), paths.ANIMATIONS)


def _animations(config: Config) -> Iterator[Cell]:
    """Agents of the first seed that are dense or have the highest sparsity."""
    sweep = config.offline_rl.sweep
    pruners = {DENSE, *ordered(list(sweep.pruners), PRUNERS)[:MOST_PRUNERS]}
    shown = (
        agent
        for agent in agents(config)
        if environment_of(config, agent).id
        and agent.seed == sweep.seeds[0]
        and agent.sparsity in {0.0, max(sweep.sparsities)}
        and agent.pruner in pruners
    )
    for (environment, algorithm), together in groupby(shown, lambda each: (each.environment, each.algorithm)):
        lanes = list(together)
        tags = {"environment": environment, "algorithm": algorithm}
        yield _animation(config, f"{environment}/{algorithm}", lanes, SECONDS, tags)
        for agent in lanes:
            yield _animation(config, name_of(agent), [agent], SECONDS_ALONE, tags_of(agent))


def _animation(
    config: Config, cell: str, lanes: Sequence[AgentSpec], seconds: float, tags: dict[str, str]
) -> Cell:
    labels = [
        DENSE if each.pruner == DENSE else f"{name(each.pruner)}, {percentage(each.sparsity)}% pruned"
        for each in lanes
    ]
    colours = [PRUNERS.get(each.pruner, OTHER) for each in lanes]
    params = AnimateParams(environment_of(config, lanes[0]), tuple(map(Caption, labels, colours)), seconds)
    return Cell(cell, animate, params, dict(zip(labels, map(episode_of, lanes), strict=True)), tags)


@step("sizes", tags=AGENT_TAGS, tables=(paths.SIZES,))
def measure_bytes(work: Work, config: Config) -> None:
    """Measure the bytes of every trained agent's networks in each storage format.

    The bytes are in `sizes.csv`, where `ratio_to_dense` is the bytes of the dense network divided by those of
    the format.
    """
    cells = [
        Cell(name_of(agent), measure_sizes, agent, {"model": model_of(agent)}, tags_of(agent))
        for agent in agents(config)
    ]
    concatenate(work.compute(cells), paths.SIZES)


@step(
    "quantize",
    tags=AGENT_TAGS,
    metrics=(*(f"d4rl_score_{kind}" for kind in KINDS), *(f"bytes_{kind}" for kind in KINDS)),
    tables=(paths.QUANTIZED,),
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
    concatenate(work.compute([quantize_cell(config, agent) for agent in chosen]), paths.QUANTIZED)


def quantize_cell(config: Config, agent: AgentSpec) -> Cell:
    """The cell that packs an agent with each kind of values and scores it."""
    offline_rl = config.offline_rl
    updates = training_config(config, agent).updates
    params = QuantizeParams(
        agent, environment_of(config, agent), offline_rl.quantization.values, offline_rl.evaluation, updates
    )
    inputs = {"agent": model_of(agent)}
    return Cell(name_of(agent), quantize_agent, params, inputs, tags_of(agent), modules=modules_of(agent))


STEPS = {
    "data": (prepare_data,),
    "agents": (prune_agents, train_agents),
    "measure_agents": (animate_agents, measure_bytes, quantize_agents),
}
