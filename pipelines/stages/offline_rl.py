"""Stages of offline RL: `data`, `agents` and `measure_agents`."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pandas

from pipelines import stages
from pipelines.config.offline_rl import OfflineRLConfig
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from singleshot.io.tables import concatenate
from singleshot.io.whole_file import sha256_of
from singleshot.pruning.masks import module_of
from singleshot.pruning.variant import DENSE, percentage, variant_name
from singleshot.rl.agents import AGENT_FILE, AgentSpec
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

DIGESTS = stages.EXPERTS / "datasets.sha256"
"""Digests of the datasets that the default settings give, in the format of `sha256sum`."""
SUMMARY = Path("results/offline_rl/summary.json")
MOST_PRUNERS = 3
"""Largest number of pruned agents beside the dense one, as four lanes can be watched at once."""
SECONDS, SECONDS_ALONE = 20, 10
"""Seconds of agents side by side, after which the distances between HalfCheetahs tell how they differ, and of
one agent by itself."""


@step("prepare_data")
def prepare_data(work: Work, config: Config) -> None:
    """Make each environment's transitions, from rollouts of experts or from Minari's or D4RL's data.

    `d4rl_score`: 0 is a random policy, 100 is D4RL's expert. `return_mean`: the mean return of the episodes
    in the data.
    """
    planned = data_cells(config.offline_rl)
    for cell, directory in zip(planned, work.compute(planned, stages.DATASETS), strict=True):
        failures = json.loads((directory / "card.json").read_text("utf-8"))["failures"]
        if failures:
            used, left_out = len(failures["used"]), len(failures["left_out"])
            print(f"{cell.name}: {used} failed episodes in the data, {left_out} left out of it")
        check_digest(cell.params, directory / "transitions.safetensors")


def data_cells(config: OfflineRLConfig) -> list[Cell]:
    """The cells of all datasets that agents of the sweep are trained on, by environment and draw."""
    by_dataset = {config.data_of(agent): agent for agent in config.agents()}
    return [data_cell(config, agent) for agent in by_dataset.values()]


def data_cell(config: OfflineRLConfig, agent: AgentSpec) -> Cell:
    """The cell that makes the dataset that an agent is trained on."""
    environment = config.environment_of(agent)
    params = DatasetParams.of(agent.environment, environment, config.data, config.draw_of(agent))
    inputs = params.inputs(stages.EXPERTS / f"{agent.environment.lower()}.safetensors")
    tags = {"environment": agent.environment, "source": config.data.source}
    return Cell(config.data_of(agent), prepare_dataset, params, inputs, tags, modules=environment.modules)


def dataset_of(config: OfflineRLConfig, agent: AgentSpec) -> Path:
    """The file of the transitions that an agent is trained on."""
    return stages.DATASETS / config.data_of(agent) / "transitions.safetensors"


def model_of(agent: AgentSpec) -> Path:
    """The file of a trained agent."""
    return stages.AGENTS / agent.name / AGENT_FILE


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
            "%s: its SHA-256 is %s…, not %s… as in %s: MuJoCo or NumPy compute differently here, and scores "
            "may differ from the documented ones",
            *(dataset, found[:8], known[:8], DIGESTS),
        )


@step("prune", stages.LAYERS)
def prune_agents(work: Work, config: Config) -> None:
    """Make the masks of every pruned agent of the sweep, before any training.

    `layers.csv` has the number of weights that each mask keeps in each layer.
    """
    offline_rl = config.offline_rl
    cells = [prune_cell(offline_rl, agent) for agent in offline_rl.agents() if agent.mask_pruner]
    concatenate(work.compute(cells, stages.MASKS), stages.LAYERS)


def prune_cell(config: OfflineRLConfig, agent: AgentSpec) -> Cell:
    """The cell that makes the masks of a pruned agent."""
    pruning = replace(config.pruning, reinitialize=False)  # on which masks do not depend
    params = PruneParams(agent, config.algorithm_of(agent), pruning)
    inputs = {"dataset": dataset_of(config, agent)}
    assert agent.mask_pruner is not None
    modules = (agent.module, module_of(agent.mask_pruner))
    return Cell(agent.name, prune_agent, params, inputs, agent.tags, modules=modules)


@step("train", stages.SCORES)
def train_agents(work: Work, config: Config) -> None:
    """Train every agent of the sweep under its mask, and score it as it trains.

    Steps are updates. `d4rl_score`: 0 is a random policy, 100 is D4RL's expert. `return_mean`: the mean
    return of the episodes played after that update. `scores.csv` has all evaluations.

    Group the charts by the tag `agent` to average over seeds. Algorithms may train for different numbers of
    updates; the filter `tags.algorithm = 'bc'` shows one.
    """
    cells = [train_cell(config.offline_rl, agent) for agent in config.offline_rl.agents()]
    directories = work.compute(cells, stages.AGENTS, gpu=True, start_ray=True)
    concatenate(directories, stages.SCORES)
    # Of agents without an environment, instead of scores.
    concatenate(directories, stages.HELDOUT, HeldoutRow)
    summary = _summary(pandas.read_csv(stages.SCORES))
    SUMMARY.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def train_cell(config: OfflineRLConfig, agent: AgentSpec) -> Cell:
    """The cell that trains an agent, under its masks if it begins with any."""
    environment = config.environment_of(agent)
    params = TrainParams(
        agent,
        environment,
        config.algorithm_of(agent),
        config.training_of(agent),
        config.evaluation,
        config.pruning.reinitialize,
        config.execution,
        "part" if agent.pruner == DENSE else config.pruning.scope,  # which dense agents do not depend on
    )
    inputs = {"dataset": dataset_of(config, agent)}
    if agent.mask_pruner:
        inputs["masks"] = stages.MASKS / agent.name / "masks.safetensors"
    if environment.id is None:
        inputs["heldout"] = inputs["dataset"].with_name("heldout.safetensors")
    stack, modules = str(agent.unpruned), (agent.module, *environment.modules)
    return Cell(agent.name, train, params, inputs, agent.tags, stack, modules=modules)


def _summary(scores: pandas.DataFrame) -> dict[str, float]:
    """For `dvc metrics`: the D4RL score of each kind of agent, as a mean over seeds."""
    kind = ["environment", "algorithm", "pruner", "sparsity"]
    means = agent_scores(scores, [*kind, "seed"]).groupby(kind)["d4rl_score"].mean()
    return {
        f"{environment}/{algorithm}/{variant_name(str(pruner), sparsity)}": round(score, 2)
        for (environment, algorithm, pruner, sparsity), score in means.items()
    }


@step("animate")
def animate_agents(work: Work, config: Config) -> None:
    """Draw an episode of trained agents in motion: each alone, and dense agents beside pruned ones.

    The episode is one of median return in the last evaluation. A run with a tag `pruner` shows a single
    agent.
    """
    work.compute(list(_animations(config.offline_rl)), stages.ANIMATIONS)


def _animations(config: OfflineRLConfig) -> Iterator[Cell]:
    """Agents of the first seed that are dense or have the highest sparsity."""
    sweep = config.sweep
    pruners = {DENSE, *ordered(list(sweep.pruners), PRUNERS)[:MOST_PRUNERS]}
    shown = (
        agent
        for agent in config.agents()
        if config.environment_of(agent).id
        and agent.seed == sweep.seeds[0]
        and agent.sparsity in {0.0, max(sweep.sparsities)}
        and agent.pruner in pruners
    )
    for (environment, algorithm), together in groupby(shown, lambda each: (each.environment, each.algorithm)):
        lanes = list(together)
        tags = {"environment": environment, "algorithm": algorithm}
        yield _animation(config, f"{environment}/{algorithm}", lanes, SECONDS, tags)
        for agent in lanes:
            yield _animation(config, agent.name, [agent], SECONDS_ALONE, agent.tags)


def _animation(
    config: OfflineRLConfig, cell: str, lanes: Sequence[AgentSpec], seconds: float, tags: dict[str, str]
) -> Cell:
    labels = [
        DENSE if each.pruner == DENSE else f"{name(each.pruner)}, {percentage(each.sparsity)}% pruned"
        for each in lanes
    ]
    colours = [PRUNERS.get(each.pruner, OTHER) for each in lanes]
    environment = config.environment_of(lanes[0])
    params = AnimateParams(environment, tuple(map(Caption, labels, colours)), seconds)
    episodes = (stages.AGENTS / each.name / "episode.safetensors" for each in lanes)
    inputs = dict(zip(labels, episodes, strict=True))
    return Cell(cell, animate, params, inputs, tags, modules=environment.modules)


@step("sizes", stages.SIZES)
def measure_bytes(work: Work, config: Config) -> None:
    """Measure the bytes of every trained agent's networks in each storage format.

    The bytes are in `sizes.csv`, where `ratio_to_dense` is the bytes of the dense network divided by those of
    the format.
    """
    cells = [
        Cell(agent.name, measure_sizes, agent, {"model": model_of(agent)}, agent.tags)
        for agent in config.offline_rl.agents()
    ]
    concatenate(work.compute(cells), stages.SIZES)


@step("quantize", stages.QUANTIZED)
def quantize_agents(work: Work, config: Config) -> None:
    """Round the values of trained agents to fewer bits, and score the agents again.

    `d4rl_score_<values>` and `bytes_<values>`: the score and the size of the packed agent, for each kind of
    values, of which `raw` keeps all bits. `quantized.csv` has the returns.
    """
    # Agents of all pruners: rounding may cost more where a pruner kept fewer weights of a layer.
    offline_rl, sweep = config.offline_rl, config.offline_rl.sweep
    seeds = list(dict.fromkeys(sweep.seeds))[: offline_rl.quantization.seeds]
    chosen = (
        agent
        for agent in offline_rl.agents()
        if agent.sparsity == max(sweep.sparsities)
        and agent.seed in seeds
        and offline_rl.environment_of(agent).id
    )
    concatenate(work.compute([quantize_cell(offline_rl, agent) for agent in chosen]), stages.QUANTIZED)


def quantize_cell(config: OfflineRLConfig, agent: AgentSpec) -> Cell:
    """The cell that packs an agent with each kind of values and scores it."""
    environment, updates = config.environment_of(agent), config.training_of(agent).updates
    params = QuantizeParams(agent, environment, config.quantization.values, config.evaluation, updates)
    inputs, modules = {"agent": model_of(agent)}, (agent.module, *environment.modules)
    return Cell(agent.name, quantize_agent, params, inputs, agent.tags, modules=modules)
