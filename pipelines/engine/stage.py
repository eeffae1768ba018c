"""The work that all steps of stages share: open the tracker, compute cells, link their files."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.engine.cells import Cell, CellStore, read_made
from pipelines.engine.dvc_files import DVC
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.experiments import Experiment
from pipelines.engine.fanout import fan_out
from pipelines.engine.locks import one_at_a_time
from pipelines.engine.processes import ends_with_its_parents
from pipelines.engine.provenance import Made, write_provenance
from pipelines.engine.remote_cells import open_store
from pipelines.engine.tracking import ModelLog, Tracker, TrackingConfig, tracking

CELLS = Path(".cells")
PROVENANCE = Path("results/provenance")


@dataclasses.dataclass(frozen=True)
class Step:
    """An open step of a stage: where its cells run, where they are stored, and who records them."""

    name: str
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
        models: ModelLog | None = None,
    ) -> list[Path]:
        """Compute those of `cells` that the store lacks, then link each cell's files below `out`, if given.

        `gpu`, `alone` and `start_ray` are as in :func:`~pipelines.engine.fanout.fan_out`; `models` logs the
        cells' model files.

        Returns:
            the cells' directories, in the order of `cells`: below `out`, or else the store's own, which are
            only to be read.
        """
        self.tracker.models = models
        print(f"{self.name} ({self.profile}): ", end="", flush=True)
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


@contextlib.contextmanager
def open_step(
    stage: str,
    name: str,
    profile: str,
    executor: ExecutorConfig,
    tracker: TrackingConfig,
    experiment: Experiment,
) -> Iterator[Step]:
    """Open a step of `stage`; at its end, attach its tables to its run and write its provenance."""
    with tracking(tracker, name, profile, experiment) as opened:
        step = Step(name, profile, executor, open_store(CELLS), opened)
        yield step
        for table in experiment.tables:
            opened.table(table)
    write_provenance(name, profile, step.made, PROVENANCE / stage / f"{name}.json")
