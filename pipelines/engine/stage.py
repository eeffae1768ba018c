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
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.experiments import Experiment
from pipelines.engine.fanout import fan_out
from pipelines.engine.processes import ends_with_its_parents, one_at_a_time
from pipelines.engine.provenance import Made, write_provenance
from pipelines.engine.remote_cells import open_store
from pipelines.engine.tracking import Tracker, TrackingConfig, tracking

CELLS = Path(".cells")
PROVENANCE = Path("results/provenance")


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

    def compute(
        self,
        cells: Sequence[Cell],
        out: Path | None = None,
        *,
        gpu: bool = False,
        alone: bool = False,
        start_ray: bool = False,
    ) -> list[Path]:
        """Compute those of `cells` that the store lacks, then link each cell's files below `out`, if given.

        `gpu`, `alone` and `start_ray` are as in :func:`~pipelines.engine.fanout.fan_out`.

        Returns:
            the cells' directories, in the order of `cells`: below `out`, or else the store's own, which are
            only to be read.
        """
        print(f"{self.step} ({self.profile}): ", end="", flush=True)
        fan_out(cells, self.executor, self.store, self.tracker, gpu=gpu, alone=alone, start_ray=start_ray)
        stored = [self.store.path(cell.digest) for cell in cells]
        self.made.extend(map(read_made, stored))
        if out is None:
            return stored
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)  # even if there are no cells, as DVC requires every out
        for cell in cells:
            self.store.link(cell, out / cell.name)
        return [out / cell.name for cell in cells]


@contextlib.contextmanager
def open_stage(name: str) -> Iterator[None]:
    """Open a stage of dvc.yaml, which ends with the `dvc` that runs it, and waits for its other drivers."""
    with ends_with_its_parents(), one_at_a_time(DVC / f"{name}.lock", f"the stage {name}"):
        yield


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a stage: a function that plans cells, computes them and writes their tables.

    It takes the open step and the configuration. Its docstring describes it in MLflow.
    """

    name: str
    """The last part of its experiment's name in MLflow."""
    experiment: Experiment
    run: Callable[[Work, Any], None]


def step(
    name: str,
    *,
    tags: Sequence[str] = (),
    metrics: Sequence[str] = (),
    groups: Sequence[str] = (),
    tables: Sequence[Path] = (),
) -> Callable[[Callable[[Work, Any], None]], Step]:
    """Make a function a step. The options are as in :class:`~pipelines.engine.experiments.Experiment`."""

    def declare(run: Callable[[Work, Any], None]) -> Step:
        about, _, details = (inspect.getdoc(run) or "").partition("\n\n")
        experiment = Experiment(about, details, tuple(tags), tuple(metrics), tuple(groups), tuple(tables))
        return Step(name, experiment, run)

    return declare


def run_stage(
    name: str,
    steps: Sequence[Step],
    config: Any,
    profile: str,
    executor: ExecutorConfig,
    tracker: TrackingConfig,
) -> None:
    """Run the steps of a stage, attach each one's tables to its run, and write its provenance."""
    with open_stage(name):
        for each in steps:
            with tracking(tracker, each.name, profile, each.experiment) as opened:
                work = Work(each.name, profile, executor, open_store(CELLS), opened)
                each.run(work, config)
                for table in each.experiment.tables:
                    opened.table(table)
            write_provenance(each.name, profile, work.made, PROVENANCE / name / f"{each.name}.json")
