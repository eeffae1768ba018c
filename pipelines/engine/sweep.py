"""The driver's side of a sweep, for all executors."""

import dataclasses
import json
import logging
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import tqdm

from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.disks import DiskFullError, disk_full_error, is_disk_full
from pipelines.engine.execution import CellBatch, Finished, LostError, OutOfMemoryError, batches
from singleshot.errors import UserError
from singleshot.job import Artifact, Checkpoint, Event, Metrics, Progress
from singleshot.secrets import without_secrets

log = logging.getLogger(__name__)

TRANSIENT_RETRIES = 3
"""How often cells are started again whose process or node was lost."""
ON = "going on from the last checkpoint"


class Recorder:
    """Receives the events of cells to record them. This base class records nothing."""

    def reused(self, cells: Sequence[Cell], store: CellStore) -> None:
        """`cells` are in `store` already."""

    def started(self, cell: Cell) -> None:
        """The cell is started, for the first time or again."""

    def metrics(self, cell: Cell, step: int, values: Mapping[str, float]) -> None:
        """The cell has measured `values` at a step."""

    def artifact(self, cell: Cell, name: str, file: Path) -> None:
        """The cell, which is still running, has yielded a file that is worth a look."""

    def flush(self) -> None:
        """Everything that is buffered has to be recorded now."""

    def finished(self, cell: Cell, directory: Path) -> None:
        """The cell is done; its files are in `directory`."""

    def failed(self, cell: Cell, reason: str) -> None:
        """The cell has failed; `reason` is its traceback."""


class CellsFailedError(RuntimeError):
    """Some cells failed; the message has the name, parameters and traceback of the first one."""


class Sweep:
    """Cells that are being computed; their events go to the store, the recorder and one progress bar."""

    def __init__(self, cells: Sequence[Cell], store: CellStore, recorder: Recorder, unit: str = "cell"):
        self.store = store
        self.recorder = recorder
        self.failures: list[tuple[Cell, BaseException, str]] = []
        self.sizes = {cell.digest: cell.size for cell in cells}
        self.progress = dict.fromkeys(self.sizes, 0.0)
        self.running: set[str] = set()
        # A terminal gets a bar that moves, and a log file gets a line every half minute.
        self.bar = tqdm.tqdm(
            total=sum(self.sizes.values()),
            bar_format="{percentage:3.0f}%|{bar}| {n:.1f}/{total} {unit}s [{elapsed}<{remaining}{postfix}]",
            unit=unit,
            mininterval=0.5 if sys.stderr.isatty() else 30,
            smoothing=0,  # cells end in bursts, so the time left is estimated with the mean rate
        )

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.flush()
        self.bar.close()

    def started(self, batch: CellBatch) -> None:
        """Record that a batch has started."""
        for cell in batch.cells:
            self.running.add(cell.digest)
            self.recorder.started(cell)
        self._show()

    def handle(self, batch: CellBatch, event: Event | Finished) -> None:
        """Store and record an event of one of a batch's cells."""
        cell = batch.cells[0 if isinstance(event, Progress) else event.job]
        match event:
            case Progress():
                self.progress |= dict.fromkeys((each.digest for each in batch.cells), event.fraction)
            case Metrics():
                self.recorder.metrics(cell, event.step, event.values)
            case Checkpoint():
                # Metrics first: if they come again after a crash in between, their step shows that.
                self.recorder.flush()
                self.store.save_checkpoint(cell, event.step, event.state)
            case Artifact():
                file = self.store.save_artifact(cell, event.name, event.content)
                self.recorder.artifact(cell, event.name, file)
            case Finished():
                self.recorder.flush()  # a driver that finds the cell in the store does not record its metrics
                self.store.commit(cell, event.files, event.made)
                self.recorder.finished(cell, self.store.path(cell.digest))
                self.progress[cell.digest] = 1.0
                self.running.discard(cell.digest)
        self._show()

    def ended(self, batch: CellBatch, error: Exception | None = None) -> list[CellBatch]:
        """Record how a batch has ended, and return the batches to run in its place.

        There are none if it is done or has failed.

        Raises:
            DiskFullError: it ended as a disk is full, as would all others.
        """
        size, attempt, first = len(batch.cells), batch.attempt, batch.cells[0].name
        match error:
            case None:
                return []
            case DiskFullError():
                raise error
            case _ if is_disk_full(error):  # as when a worker's inputs or temporary folder were written
                raise disk_full_error(error) from error
            case OutOfMemoryError() if size > 1:
                log.warning("%s: %d cells at once ran out of memory (%s); halved, %s", first, size, error, ON)
                size = (size + 1) // 2
            case LostError() if attempt < TRANSIENT_RETRIES:
                log.warning("%s: %s; %s", first, error, ON)
                attempt += 1
            case OutOfMemoryError():
                self._failed(
                    batch,
                    UserError(
                        f"out of memory with no other cell in its stack ({error}); give a cell more: "
                        "executor.num_gpus 1 is a whole GPU, executor.memory_gb reserves a machine's memory; "
                        "or set executor.device to cpu"
                    ),
                )
                return []
            case _:
                self._failed(batch, error)
                return []
        unfinished = [cell for cell in batch.cells if not self.store.has(cell)]
        return list(batches(unfinished, self.store, size, attempt))

    def _failed(self, batch: CellBatch, error: Exception) -> None:
        trace = without_secrets("".join(traceback.format_exception(error)))
        for cell in batch.cells:
            self.running.discard(cell.digest)
            self.failures.append((cell, error, trace))
            self.recorder.failed(cell, trace)
        self._show()

    def raise_failures(self) -> None:
        """Raise UserError or CellsFailedError if cells have failed."""
        if not self.failures:
            return
        cell, error, trace = self.failures[0]
        if isinstance(error, UserError):
            raise UserError(f"{cell.name}: {error}")
        others = "".join(f"\n  also failed: {other.name}" for other, _, _ in self.failures[1:])
        params = without_secrets(json.dumps(dataclasses.asdict(cell.params), indent=1))
        raise CellsFailedError(
            f"{trace}\ncell {cell.name} failed; its parameters:\n{params}{others}\nAll other cells are kept."
        )

    def _show(self) -> None:
        self.bar.n = sum(self.sizes[digest] * done for digest, done in self.progress.items())
        self.bar.set_postfix_str(f"{len(self.running)} running, {len(self.failures)} failed", refresh=False)
        self.bar.update(0)
