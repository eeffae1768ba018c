"""What every stage does around its own work: read params, open the tracker, fan out, link the outs."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.config import Config, load_config
from pipelines.engine.fanout import fan_out
from pipelines.engine.lifecycle import ends_with_its_parents
from pipelines.engine.tables import concatenate
from pipelines.engine.tracking import Tracker, tracking

CELLS = Path(".cells")


@dataclasses.dataclass(frozen=True)
class Stage:
    """An open stage: its configuration, where its cells are kept and who records them."""

    name: str
    config: Config
    store: CellStore
    tracker: Tracker

    def compute(
        self, cells: Sequence[Cell], out: Path, *, gpu: bool = False, alone: bool = False
    ) -> list[Path]:
        """Compute what is missing of `cells`, then link each one's files below `out`.

        `gpu` and `alone` are :func:`~pipelines.engine.fanout.fan_out`'s.

        Returns:
            the cells' directories, in their order.
        """
        print(f"{self.name} ({self.config.profile}): ", end="")
        fan_out(cells, self.config.executor, self.store, self.tracker, gpu=gpu, alone=alone)
        shutil.rmtree(out, ignore_errors=True)
        for cell in cells:
            self.store.link(cell, out / cell.name)
        return [out / cell.name for cell in cells]

    def tabulate(self, parts: Sequence[Path], table: Path) -> None:
        """Write the rows of the CSV files `parts` to `table`, and show it with the stage's run."""
        concatenate(parts, table)
        self.tracker.table(table)


@contextlib.contextmanager
def open_stage(name: str) -> Iterator[Stage]:
    """Open the stage `name` with what `params.yaml` says."""
    config = load_config()
    with ends_with_its_parents(), tracking(config.tracking, name, config.profile) as tracker:
        yield Stage(name, config, CellStore(CELLS), tracker)
