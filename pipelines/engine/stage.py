"""What every stage does around its own work: read params, open the tracker, fan out, link the outs."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.engine.cells import Cell, CellStore, read_made
from pipelines.engine.config import Config, load_config
from pipelines.engine.fanout import fan_out
from pipelines.engine.lifecycle import ends_with_its_parents
from pipelines.engine.provenance import Made, write_provenance
from pipelines.engine.remote_cells import open_store
from pipelines.engine.tables import concatenate
from pipelines.engine.tracking import Tracker, tracking

CELLS = Path(".cells")
PROVENANCE = Path("results/provenance")


@dataclasses.dataclass(frozen=True)
class Stage:
    """An open stage: its configuration, where its cells are kept and who records them."""

    name: str
    config: Config
    store: CellStore
    tracker: Tracker
    made: list[Made] = dataclasses.field(default_factory=list)
    """Of every cell so far."""

    def compute(
        self,
        cells: Sequence[Cell],
        out: Path,
        *,
        gpu: bool = False,
        alone: bool = False,
        brief: bool = False,
    ) -> list[Path]:
        """Compute what is missing of `cells`, then link each one's files below `out`.

        `gpu`, `alone` and `brief` are :func:`~pipelines.engine.fanout.fan_out`'s.

        Returns:
            the cells' directories, in their order.
        """
        print(f"{self.name} ({self.config.profile}): ", end="")
        fan_out(cells, self.config.executor, self.store, self.tracker, gpu=gpu, alone=alone, brief=brief)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)  # of no cells too, as DVC wants every out
        for cell in cells:
            self.store.link(cell, out / cell.name)
        self.made.extend(read_made(self.store.path(cell.digest)) for cell in cells)
        return [out / cell.name for cell in cells]

    def tabulate(self, parts: Sequence[Path], table: Path) -> None:
        """Write the rows of the CSV files `parts` to `table`, and show it with the stage's run."""
        concatenate(parts, table)
        self.tracker.table(table)


@contextlib.contextmanager
def open_stage(name: str) -> Iterator[Stage]:
    """Open the stage `name` with what `params.yaml` says; at its end, tell where its results come from."""
    config = load_config()
    with ends_with_its_parents(), tracking(config.tracking, name, config.profile) as tracker:
        stage = Stage(name, config, open_store(CELLS), tracker)
        yield stage
    write_provenance(name, config.profile, stage.made, PROVENANCE / f"{name}.json")
