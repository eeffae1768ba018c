"""The study that `docs/study/` publishes: the experiments of `conf/study.yaml`, and their results as CSV.

An experiment is the profile `study` with some settings changed. Its cells are those of the steps
`prepare_data`, `prune` and `train`; their results go only to the study's tables.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pandas
from pydantic import TypeAdapter

from pipelines.config.offline_rl import OfflineRLConfig
from pipelines.config.overrides import read_yaml
from pipelines.config.params import Config, configuration
from pipelines.engine.cells import Cell, CellStore, read_made
from pipelines.engine.processes import ends_with_its_parents
from pipelines.engine.remote_cells import open_store
from pipelines.engine.run import device_of
from pipelines.engine.stage import CELLS, Step, fan_out
from pipelines.engine.tracking import tracking
from pipelines.stages import offline_rl as stage
from singleshot.errors import UserError, explained
from singleshot.io.whole_file import whole_file
from singleshot.pruning.variant import DENSE
from singleshot.rl.agents import AGENT_FILE, AgentSpec, load_agent
from singleshot.rl.pruning import count_agent_layers

EXPERIMENTS = Path("conf/study.yaml")
RUNS, SCORES, LAYERS = "runs.csv", "scores.csv", "layers.csv"
STEPS = (stage.prepare_data, stage.prune_agents, stage.train_agents)
NUMBERS = {"updates", "batch_size", "learning_rate", "transitions", "sparsity", "seed", "update"}
NUMBERS |= {"pruning_batch_size", "pruning_iterations"}
"""Columns by whose numbers rows are sorted."""


def key(config: OfflineRLConfig, agent: AgentSpec) -> dict[str, str]:
    """The first columns of every table, which distinguish an agent from all others: its settings and kind."""
    algorithm, pruning = config.algorithm_of(agent), config.pruning
    draw, failed = config.draw_of(agent), config.data.failed_episodes
    columns: dict[str, object] = {
        "updates": config.training_of(agent).updates,
        "normalize_states": algorithm.normalize_states,
        "batch_size": algorithm.batch_size,
        "learning_rate": f"{algorithm.learning_rate:g}",
        "actor": getattr(algorithm, "actor", ""),
        "hidden": "-".join(map(str, algorithm.hidden)),
        "initialization": algorithm.initialization,
        "transitions": config.data.transitions,
        "data_seed": "" if draw is None else draw,
        "failed_episodes": "" if failed is None else f"{failed:g}",
    }
    scored = agent.mask_pruner or "magnitude"
    of_masks = {
        "scope": pruning.scope,
        "pruning_batch_size": pruning.batch_size_of(scored),
        "pruning_iterations": pruning.iterations_of(scored),
        "pruning_normalize_states": pruning.normalizes(algorithm.normalize_states),
    }
    columns |= dict.fromkeys(of_masks, "") if agent.pruner == DENSE else of_masks
    return {name: str(value) for name, value in {**columns, **dataclasses.asdict(agent)}.items()}


def run_study(output: Path, names: Sequence[str] = ()) -> None:
    """Compute the experiments `names`, by default all, and add their results to the tables in `output`.

    Tables are written after each seed; on a GPU, the agents of all seeds of an experiment train side by side.
    Agents that are in the tables are not computed again, whichever commit trained them.

    Raises:
        UserError: there is no such experiment, its settings are wrong, or a table is damaged.
    """
    store = open_store(CELLS)
    output.mkdir(parents=True, exist_ok=True)
    with ends_with_its_parents():
        for name, config in experiments(names).items():
            for seeds in side_by_side(config):
                print(f"experiment {name}, seed {', '.join(map(str, seeds))}", flush=True)
                offline_rl = config.offline_rl
                own = {agent: key(offline_rl, agent) for agent in offline_rl.agents() if agent.seed in seeds}
                columns = list(next(iter(own.values())))
                tables = {table: read_table(output / table, columns) for table in (SCORES, LAYERS, RUNS)}
                published = set(tables[RUNS][columns].itertuples(index=False, name=None))
                wanted = [agent for agent, row in own.items() if tuple(row.values()) not in published]
                if not wanted:
                    print("all agents are in the tables")
                try:
                    compute(config, wanted, store)
                finally:
                    found = [results(config, agent, store) for agent in wanted]
                    for table, old in tables.items():
                        if new := [rows[table] for rows in found if table in rows]:
                            write_table(pandas.concat([old, *new]), columns, output / table)


def experiments(names: Sequence[str] = ()) -> dict[str, Config]:
    """The configurations of the experiments `names`, or of all, in the order of the file."""
    fix = "write each experiment as a name with a list of overrides, `NAME: ['KEY=VALUE']`"
    with explained(f"{EXPERIMENTS}: not a list of experiments", fix):
        overrides = TypeAdapter(dict[str, list[str]]).validate_python(read_yaml(EXPERIMENTS, fix))
    if unknown := set(names) - set(overrides):
        raise UserError(f"{EXPERIMENTS}: no experiment {min(unknown)!r}; it has {', '.join(overrides)}")
    return {name: configuration("profile=study", *overrides[name]) for name in names or overrides}


def side_by_side(config: Config) -> list[tuple[int, ...]]:
    """Seeds whose agents train together: on a GPU, which they fill, those of all seeds."""
    seeds, executor = config.offline_rl.sweep.seeds, config.executor
    # A cluster may have the GPU that the configuration asks for where this machine has none.
    on_gpu = executor.device == "cuda" or device_of(executor, gpu=True) == "cuda"
    return [tuple(seeds)] if on_gpu else [(seed,) for seed in seeds]


def compute(config: Config, wanted: Sequence[AgentSpec], store: CellStore) -> None:
    """Make the data and the masks of agents, and train them."""
    for step in STEPS if wanted else ():
        cells = [cell for agent in wanted if (cell := cell_of(step, config, agent, store))]
        once = list({cell.digest: cell for cell in cells}.values())
        with tracking(config.tracking, step.name, config.profile, step.experiment) as tracker:
            print(f"{step.name}: ", end="")
            fan_out(once, config.executor, store, tracker, gpu=step is stage.train_agents)


def cell_of(step: Step, config: Config, agent: AgentSpec, store: CellStore) -> Cell | None:
    """An agent's cell of a step, which reads those of earlier steps in the store; None if it has none."""
    data = stage.data_cell(config.offline_rl, agent)
    if step is stage.prepare_data:
        return data
    inputs = {"dataset": store.path(data.digest) / "transitions.safetensors"}
    if agent.mask_pruner:
        masks = dataclasses.replace(stage.prune_cell(config.offline_rl, agent), inputs=inputs)
        if step is stage.prune_agents:
            return masks
        inputs = {**inputs, "masks": store.path(masks.digest) / "masks.safetensors"}
    if step is stage.prune_agents:
        return None
    return dataclasses.replace(stage.train_cell(config.offline_rl, agent), inputs=inputs)


def results(config: Config, agent: AgentSpec, store: CellStore) -> dict[str, pandas.DataFrame]:
    """The rows of an agent's finished results, by the name of their table."""
    rows: dict[str, pandas.DataFrame] = {}
    for step in STEPS:
        if (cell := cell_of(step, config, agent, store)) is None:
            continue
        if not store.has(cell):
            break
        directory = store.path(cell.digest)
        if step is stage.prune_agents:
            rows[LAYERS] = read_table(directory / LAYERS, [])
        elif step is stage.train_agents:
            made = read_made(directory)
            run = {"commit": made.commit, "processor": made.machine.gpu or made.machine.processor}
            run |= {"seconds": str(made.seconds), "finished": str(made.finished)}
            rows |= {SCORES: read_table(directory / SCORES, []), RUNS: pandas.DataFrame([run])}
            trained = load_agent(directory / AGENT_FILE)
            rows[LAYERS] = pandas.DataFrame(count_agent_layers(trained.algorithm, trained.masks))
    return {table: own.assign(**key(config.offline_rl, agent)) for table, own in rows.items()}


def read_table(table: Path, columns: Sequence[str]) -> pandas.DataFrame:
    """Read a table that has these columns, as text; without rows if there is none yet.

    Raises:
        UserError: it isn't CSV, or lacks a column, e.g. because git has left the markers of a conflict.
    """
    if not table.exists():
        return pandas.DataFrame(columns=columns)
    fix = f"get it back with `git checkout HEAD {table}`"  # a file in conflict has no other version
    with explained(f"{table}: not a table of the study", fix, (ValueError, KeyError)):
        rows = pandas.read_csv(table, dtype=str, keep_default_na=False)
        rows[columns].apply(lambda own: pandas.to_numeric(own) if own.name in NUMBERS else own)
        return rows


def write_table(rows: pandas.DataFrame, columns: Sequence[str], table: Path) -> None:
    """Write a table, sorted; `columns` tell agents apart, and an agent's later rows replace earlier ones."""
    by = [*columns, *({"update", "part", "layer"} & set(rows))]
    rows = rows.drop_duplicates(by, keep="last")[[*columns, *rows.columns.difference(columns, sort=False)]]
    order = [*columns, *({"update"} & set(rows))]
    rows = rows.sort_values(
        order, key=lambda own: pandas.to_numeric(own) if own.name in NUMBERS else own, kind="stable"
    )
    with whole_file(table) as file:
        rows.to_csv(file, index=False)
