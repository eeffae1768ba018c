"""Cells on an executor: `local`, in forks of this process, or `ray`, on a cluster or on this machine.

Both run the same generator, :func:`~pipelines.engine.execution.execute`, and hand its events to the same
:class:`~pipelines.engine.sweep.Sweep`, so results are byte-identical.
"""

import contextlib
from collections.abc import Iterator, Sequence

from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.local_executor import LocalExecutor
from pipelines.engine.ray_cluster import cluster_address, ray_cluster
from pipelines.engine.ray_executor import RayExecutor
from pipelines.engine.sweep import Recorder, Sweep


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
        cells: the whole sweep; cells that are in the store are reused.
        config: where and how to run.
        store: the store of cells.
        recorder: records the course and the metrics of every cell.
        gpu: whether the task can use a GPU.
        alone: compute one cell at a time on any executor, for cells that measure times.
        start_ray: start Ray on this machine if no cluster is given, which takes six seconds; other cells are
            computed in forks of this process then.
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
