"""The study that `docs/study/` publishes: the experiments of `conf/study.yaml`, and their results as CSV.

An experiment is the profile `study` with some settings of its own. Its cells are those of the stages
`prepare_data`, `prune` and `train`; their results go only to the study's tables.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from textwrap import shorten
from typing import Any

import pandas
import yaml
from pydantic import TypeAdapter, ValidationError

from pipelines.catalog.agents import agents, algorithm_config, draw_of, training_config
from pipelines.config.params import Config, configuration
from pipelines.engine.cells import Cell, CellStore, read_made
from pipelines.engine.execution import device_of
from pipelines.engine.fanout import fan_out
from pipelines.engine.processes import ends_with_its_parents
from pipelines.engine.remote_cells import open_store
from pipelines.engine.stage import CELLS, Step
from pipelines.engine.tracking import tracking
from pipelines.stages.agents import prune_agents, prune_cell, train_agents, train_cell
from pipelines.stages.data import data_cell, prepare_data
from singleshot.errors import UserError, in_a_line
from singleshot.io.whole_file import whole_file
from singleshot.pruning.variant import DENSE
from singleshot.rl.agents import AgentSpec
from tasks.reporting.statistics import BootstrapConfig
from tasks.reporting.study.page import COLUMNS, ExperimentProgress, read_table, write_page

EXPERIMENTS = Path("conf/study.yaml")
RUNS = "runs.csv"
AS_TEXT: Mapping[str, Any] = {"dtype": str, "keep_default_na": False}
"""Options with which pandas leaves numbers as they were written."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings in which agents of different experiments differ: the first columns of every table."""

    updates: int
    normalize_states: bool
    batch_size: int
    """Number of transitions in the batch of an update."""
    data_seed: str
    """Number of the draw of the data; `shared` for agents that were trained on one draw whatever their seed,
    whose actions were not rounded."""
    failed_episodes: str
    """Fraction of the data's episodes that failed; empty where episodes were used as they came."""
    scope: str
    """The scope of pruning. This field and the following ones are empty for dense agents."""
    pruning_batch_size: str
    pruning_iterations: str
    pruning_normalize_states: str
    """Whether masks were scored on normalised states."""


SETTINGS = [field.name for field in dataclasses.fields(Settings)]
KEY = SETTINGS + [field.name for field in dataclasses.fields(AgentSpec)]
NUMBERS = {"updates", "pruning_batch_size", "pruning_iterations", "sparsity", "seed", "update", "batch_size"}


def run_study(output: Path, names: Sequence[str] = (), masks_only: bool = False) -> None:
    """Compute the experiments `names`, by default all, and write their tables to `output` after each seed.

    On a GPU, the agents of all seeds of an experiment train side by side. Agents that are already in the
    tables are not computed again, whichever commit trained them. With `masks_only`, no agent is trained.

    Raises:
        UserError: there is no such experiment, its settings are wrong, or the tables can't be added to.
    """
    store = open_store(CELLS)
    experiments = _experiments(names)
    _check_output(output)  # now, as a seed takes hours
    with ends_with_its_parents():
        for name, config in experiments.items():
            for seeds in _side_by_side(config):
                print(f"experiment {name}, seed {', '.join(map(str, seeds))}", flush=True)
                published = set() if masks_only else _keys(_table(output / RUNS))
                try:
                    compute(config, seeds, store, published, masks_only)
                finally:
                    write_tables(output, [name])


def _side_by_side(config: Config) -> list[list[int]]:
    """Seeds whose agents train together: on a GPU, which they fill, those of all seeds."""
    seeds, executor = config.offline_rl.sweep.seeds, config.executor
    # A cluster may have the GPU that the configuration asks for where this machine has none.
    on_gpu = executor.device == "cuda" or device_of(executor, gpu=True) == "cuda"
    return [list(seeds)] if on_gpu else [[seed] for seed in seeds]


def write_tables(output: Path, names: Sequence[str] = ()) -> None:
    """Add the finished results of the experiments `names`, by default all, to the tables in `output`.

    `scores.csv` and `layers.csv` are the tables of the steps `train` and `prune` with the settings in front.
    `runs.csv` says for each agent which commit trained it, when, for how long and on what processor. Rows of
    other agents stay as they are.

    Raises:
        UserError: as :func:`run_study`.
    """
    store = open_store(CELLS)
    tables: dict[str, list[pandas.DataFrame]] = {name: [] for name in COLUMNS}
    experiments = _experiments(names)
    _check_output(output)
    for config in experiments.values():
        for agent in agents(config):
            for name, rows in results(config, agent, store).items():
                tables[name].append(rows)
    before = len(_table(output / RUNS))
    for name, parts in tables.items():
        _merge(parts, output / name)
    after = len(_table(output / RUNS))
    print(f"{output / RUNS}: {after} agents, {after - before} of them new", flush=True)


def _check_output(output: Path) -> None:
    """Check that tables can be written to `output`, and added to those that are there; creates it."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{output}: a file is in its place; name a directory with --output") from error
    for name in COLUMNS:
        _table(output / name)


def draw_page(output: Path) -> None:
    """Write `README.md` and its figures from the tables in `output`.

    Raises:
        UserError: a table is missing or damaged.
    """
    finished = _keys(_table(output / RUNS))
    experiments = []
    planned: set[tuple[str, ...]] = set()
    for name, config in _experiments(()).items():
        keys = {agent: _key(_settings(config, agent), agent) for agent in agents(config)}
        pruned = {key for agent, key in keys.items() if agent.pruner != DENSE}
        dense = set(keys.values()) - pruned
        counts = [len(own) for own in (pruned, pruned & finished, dense, dense & finished)]
        experiments.append(ExperimentProgress(name, *counts))
        planned.update(keys.values())
    write_page(output, experiments, len(planned), BootstrapConfig())


def _experiments(names: Sequence[str]) -> dict[str, Config]:
    """The configurations of the experiments `names`, or of all, in the order of the file."""
    overrides = _overrides()
    unknown = set(names) - set(overrides)
    if unknown:
        raise UserError(f"{EXPERIMENTS}: no experiment {min(unknown)!r}; it has {', '.join(overrides)}")
    return {name: configuration("profile=study", *overrides[name]) for name in names or overrides}


def _overrides() -> Mapping[str, Sequence[str]]:
    """The overrides of each experiment, in the order of the file."""
    fix = "write each experiment as a name with a list of overrides, `NAME: ['KEY=VALUE']`"
    try:
        return TypeAdapter(dict[str, list[str]]).validate_python(
            yaml.safe_load(EXPERIMENTS.read_text("utf-8"))
        )
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(map(str, wrong["loc"])) or "the whole"
        given = shorten(repr(wrong["input"]), 60)
        raise UserError(f"{EXPERIMENTS}: {key}: {wrong['msg']} (it is {given}); {fix}") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{EXPERIMENTS}: {in_a_line(error)}; {fix}") from error


def compute(
    config: Config,
    seeds: Collection[int],
    store: CellStore,
    published: Set[tuple[str, ...]] = frozenset(),
    masks_only: bool = False,
) -> None:
    """Make the masks of those agents of some seeds that are not `published`, and train them."""
    wanted = [
        agent
        for agent in agents(config)
        if agent.seed in seeds and _key(_settings(config, agent), agent) not in published
    ]
    if not wanted:
        print("all agents are in the tables")
        return
    data = {cell.digest: cell for cell in (_data(config, agent) for agent in wanted)}
    _fan_out(prepare_data, list(data.values()), config, store)
    pruned = [agent for agent in wanted if agent.mask_pruner]
    _fan_out(prune_agents, [_masks(config, agent, store) for agent in pruned], config, store)
    if masks_only:
        return
    _fan_out(train_agents, [_training(config, agent, store) for agent in wanted], config, store, gpu=True)


def _fan_out(
    step: Step, cells: Sequence[Cell], config: Config, store: CellStore, *, gpu: bool = False
) -> None:
    print(f"{step.name}: ", end="")
    with tracking(config.tracking, step.name, config.profile, step.experiment) as tracker:
        fan_out(cells, config.executor, store, tracker, gpu=gpu)


def _data(config: Config, agent: AgentSpec) -> Cell:
    return data_cell(config, agent.environment, draw_of(config, agent))


def _dataset(config: Config, agent: AgentSpec, store: CellStore) -> Path:
    return store.path(_data(config, agent).digest) / "transitions.safetensors"


def _masks(config: Config, agent: AgentSpec, store: CellStore) -> Cell:
    """The cell of the step `prune`, with the dataset in the store as its input."""
    return dataclasses.replace(prune_cell(config, agent), inputs={"dataset": _dataset(config, agent, store)})


def _training(config: Config, agent: AgentSpec, store: CellStore) -> Cell:
    """The cell of the step `train`, with the dataset and the masks in the store as its inputs."""
    inputs = {"dataset": _dataset(config, agent, store)}
    if agent.mask_pruner:
        inputs["masks"] = store.path(_masks(config, agent, store).digest) / "masks.safetensors"
    return dataclasses.replace(train_cell(config, agent), inputs=inputs)


def _settings(config: Config, agent: AgentSpec) -> Settings:
    algorithm, pruning = algorithm_config(config, agent), config.offline_rl.pruning
    draw, failed = draw_of(config, agent), config.offline_rl.data.failed_episodes
    dense = Settings(
        training_config(config, agent).updates,
        algorithm.normalize_states,
        algorithm.batch_size,
        "" if draw is None else str(draw),
        "" if draw is None or failed is None else f"{failed:g}",
        *("", "", "", ""),
    )
    if agent.pruner == DENSE:
        return dense
    # Agents without masks before training are scored on no batch. Their rows are those of magnitude scores.
    pruner = agent.mask_pruner or "magnitude"
    return dataclasses.replace(
        dense,
        scope=pruning.scope,
        pruning_batch_size=str(pruning.batch_size_of(pruner)),
        pruning_iterations=str(pruning.iterations_of(pruner)),
        pruning_normalize_states=str(pruning.normalizes(algorithm.normalize_states)),
    )


def _key(settings: Settings, agent: AgentSpec) -> tuple[str, ...]:
    """The key of an agent in the tables."""
    return tuple(map(str, dataclasses.astuple(settings) + dataclasses.astuple(agent)))


def _table(table: Path) -> pandas.DataFrame:
    """The rows of one of the study's tables, as text; none if there is no such table yet."""
    columns = [*KEY, "commit"] if table.name == RUNS else KEY
    return read_table(table, columns, **AS_TEXT) if table.exists() else pandas.DataFrame(columns=columns)


def _keys(runs: pandas.DataFrame) -> set[tuple[str, ...]]:
    return set(runs[KEY].itertuples(index=False, name=None))


def results(config: Config, agent: AgentSpec, store: CellStore) -> dict[str, pandas.DataFrame]:
    """The rows of an agent's finished results, as text, by the name of their table."""
    rows = {}
    if not store.has(_data(config, agent)):
        return {}
    if agent.mask_pruner:
        masks = _masks(config, agent, store)
        if not store.has(masks):
            return {}
        rows["layers.csv"] = _read(store.path(masks.digest) / "layers.csv")
    training = _training(config, agent, store)
    if store.has(training):
        made = read_made(store.path(training.digest))
        run = {
            "commit": made.commit,
            "processor": made.machine.gpu or made.machine.processor,
            "seconds": made.seconds,
            "finished": made.finished,
        }
        rows["scores.csv"] = _read(store.path(training.digest) / "scores.csv")
        rows[RUNS] = pandas.DataFrame([dataclasses.asdict(agent) | run]).astype(str)
    settings = {name: str(value) for name, value in dataclasses.asdict(_settings(config, agent)).items()}
    return {name: pandas.DataFrame(settings, index=table.index).join(table) for name, table in rows.items()}


def _read(table: Path) -> pandas.DataFrame:
    """Read a cell's table."""
    return pandas.read_csv(table, **AS_TEXT)


def _merge(parts: Sequence[pandas.DataFrame], table: Path) -> None:
    """Replace or add the rows of `parts` in `table`; those of other agents stay."""
    if not parts:
        return
    new = pandas.concat(parts).drop_duplicates()  # dense agents are in several experiments
    if table.exists():
        old = _table(table)
        kept = ~pandas.MultiIndex.from_frame(old[KEY]).isin(pandas.MultiIndex.from_frame(new[KEY]))
        new = pandas.concat([old[kept], new])
    order = [*KEY, *(["update"] if "update" in new else [])]
    with whole_file(table) as file:
        new.sort_values(order, key=_sortable, kind="stable").to_csv(file, index=False)


def _sortable(column: "pandas.Series[str]") -> pandas.Series:
    return pandas.to_numeric(column) if column.name in NUMBERS else column
