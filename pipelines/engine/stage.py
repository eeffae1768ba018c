"""What all steps of stages share: open the tracker, compute cells, link their files."""

import contextlib
import dataclasses
import inspect
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipelines.engine.cells import Cell, CellStore, read_made
from pipelines.engine.dvc_files import DVC
from pipelines.engine.on_ray import RayExecutor, cluster_address, ray_cluster
from pipelines.engine.processes import ends_with_its_parents, one_at_a_time
from pipelines.engine.provenance import Made, write_provenance
from pipelines.engine.remote_cells import open_store
from pipelines.engine.run import ExecutorConfig, LocalExecutor, Recorder, Sweep
from pipelines.engine.tracking import Experiment, Tracker, TrackingConfig, tracking

CELLS = Path(".cells")
PROVENANCE = Path("results/provenance")


def fan_out(
    cells: Sequence[Cell],
    config: ExecutorConfig,
    store: CellStore,
    recorder: Recorder,
    *,
    gpu: bool = False,
    alone: bool = False,
    start_ray: bool = False,
    unit: str = "cell",
) -> None:
    """Compute those of `cells` that `store` lacks. On return it has all of them.

    Args:
        gpu: whether the task can use a GPU.
        alone: compute one cell at a time on any executor, for cells that measure times.
        start_ray: start Ray on this machine if no cluster is given, which takes six seconds; otherwise, cells
            are then computed in forks of this process.
        unit: the unit in which progress is shown; a cell counts as `Cell.size` units.

    Raises:
        CellsFailedError: some cells failed; it is raised when all others are done.
        UserError: a cell failed for a reason that the user can fix.
    """
    store.prepare()
    store.fetch(cells)
    kept = {cell.digest for cell in cells if store.has(cell)}
    missing = [cell for cell in cells if cell.digest not in kept]
    reused = [cell for cell in cells if cell.digest in kept]
    resumable = sum(store.checkpoint(cell) is not None for cell in missing)
    resumed = f" ({resumable} from a checkpoint)" if resumable else ""
    print(f"cells: {len(cells)} in all, {len(reused)} reused, {len(missing)} to compute{resumed}", flush=True)
    recorder.reused(reused, store)
    if missing:
        turns = [[cell] for cell in missing] if alone else [missing]
        start_ray = start_ray and len(turns[0]) > 1
        with _executor(config, gpu, start_ray) as executor, Sweep(missing, store, recorder, unit) as sweep:
            for turn in turns:
                executor.run(sweep, turn)
        sweep.raise_failures()


@contextlib.contextmanager
def _executor(config: ExecutorConfig, gpu: bool, start_ray: bool) -> Iterator[LocalExecutor | RayExecutor]:
    if config.kind == "local" or not (start_ray or cluster_address(config)):
        with contextlib.closing(LocalExecutor(config, gpu)) as executor:
            yield executor
        return
    with ray_cluster(config):
        yield RayExecutor(config, gpu)


@dataclasses.dataclass(frozen=True)
class Work:
    """A step that is running: where its cells run, where they are stored, and who records them."""

    step: str
    profile: str
    executor: ExecutorConfig
    store: CellStore
    tracker: Tracker
    made: list[Made] = dataclasses.field(default_factory=list)
    """The records of all cells computed so far."""

    def compute(self, cells: Sequence[Cell], out: Path | None = None, **how: Any) -> list[Path]:
        """Compute those of `cells` that the store lacks, then link each cell's files below `out`, if given.

        `how`: `gpu`, `alone` and `start_ray`, as in :func:`fan_out`.

        Returns:
            the cells' directories, in the order of `cells`: below `out`, or else the store's own, which are
            only to be read.
        """
        print(f"{self.step} ({self.profile}): ", end="", flush=True)
        fan_out(cells, self.executor, self.store, self.tracker, **how)
        stored = [self.store.path(cell.digest) for cell in cells]
        self.made.extend(map(read_made, stored))
        if out is None:
            return stored
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)  # even if there are no cells, as DVC requires every out
        for cell in cells:
            self.store.link(cell, out / cell.name)
        return [out / cell.name for cell in cells]


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a stage: a function that plans cells, computes them and writes their tables.

    It takes the open step and the configuration. Its docstring describes it in MLflow.
    """

    name: str
    """The last part of its experiment's name in MLflow."""
    experiment: Experiment
    run: Callable[[Work, Any], None]


def step(name: str, *tables: Path) -> Callable[[Callable[[Work, Any], None]], Step]:
    """Make a function a step, whose `tables` become artifacts of its run in MLflow."""

    def declare(run: Callable[[Work, Any], None]) -> Step:
        about, _, details = (inspect.getdoc(run) or "").partition("\n\n")
        return Step(name, Experiment(about, details, tables), run)

    return declare


def run_stage(
    name: str,
    steps: Sequence[Step],
    config: Any,
    profile: str,
    executor: ExecutorConfig,
    tracker: TrackingConfig,
) -> None:
    """Run the steps of a stage, attach each one's tables to its run, and write its provenance.

    The stage ends with the `dvc` that runs it, and waits for its other drivers.
    """
    with ends_with_its_parents(), one_at_a_time(DVC / f"{name}.lock", f"the stage {name}"):
        for each in steps:
            with tracking(tracker, each.name, profile, each.experiment) as opened:
                work = Work(each.name, profile, executor, open_store(CELLS), opened)
                each.run(work, config)
                for table in each.experiment.tables:
                    opened.table(table)
            write_provenance(each.name, profile, work.made, PROVENANCE / name / f"{each.name}.json")
