"""The work that all stages share: open the tracker, compute cells, link their files."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.engine.cells import Cell, CellStore, read_made
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.experiments import Experiment
from pipelines.engine.fanout import fan_out
from pipelines.engine.lifecycle import ends_with_its_parents
from pipelines.engine.provenance import Made, write_provenance
from pipelines.engine.remote_cells import open_store
from pipelines.engine.tracking import ModelLog, Tracker, TrackingConfig, tracking
from pipelines.engine.turns import DVC, alone

CELLS = Path(".cells")
PROVENANCE = Path("results/provenance")


@dataclasses.dataclass(frozen=True)
class Stage:
    """An open stage: where its cells run, where they are stored, and who records them."""

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
        brief: bool = False,
        models: ModelLog | None = None,
    ) -> list[Path]:
        """Compute those of `cells` that the store lacks, then link each cell's files below `out`, if given.

        `gpu`, `alone` and `brief` are as in :func:`~pipelines.engine.fanout.fan_out`; `models` logs the
        cells' model files.

        Returns:
            the cells' directories, in the order of `cells`: below `out`, or else the store's own, which are
            only to be read.
        """
        self.tracker.models = models
        print(f"{self.name} ({self.profile}): ", end="", flush=True)
        fan_out(cells, self.executor, self.store, self.tracker, gpu=gpu, alone=alone, brief=brief)
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
def open_stage(
    name: str, profile: str, executor: ExecutorConfig, tracker: TrackingConfig, experiment: Experiment
) -> Iterator[Stage]:
    """Open the stage `name`; at its end, attach its tables to its run and write its provenance."""
    with (
        ends_with_its_parents(),
        alone(DVC / f"{name}.lock", f"the stage {name}"),
        tracking(tracker, name, profile, experiment) as opened,
    ):
        stage = Stage(name, profile, executor, open_store(CELLS), opened)
        yield stage
        for table in experiment.tables:
            opened.table(table)
    write_provenance(name, profile, stage.made, PROVENANCE / f"{name}.json")
