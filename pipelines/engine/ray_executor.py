"""Cells as Ray tasks. Workers need the installed dependencies and the network, and nothing else.

Code travels as Ray's `working_dir`, inputs and checkpoints through the object store, and metrics,
checkpoints and results come back as events, so no worker reads the driver's disk.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.engine.cells import Cell
from pipelines.engine.execution import (
    CellBatch,
    ExecutorConfig,
    OutOfMemoryError,
    batches,
    checkpoints_of,
    execute,
    stack_size,
    temporary_directory,
)
from pipelines.engine.ray_cluster import cluster_address
from pipelines.engine.sources import check_packages
from pipelines.engine.sweep import TRANSIENT_RETRIES, Sweep
from singleshot.errors import UserError

CPU_UNIT = 1e-4
"""Smallest fraction of a core that Ray counts."""


class RayExecutor:
    """Computes cells as Ray tasks.

    The driver retries the cells of a lost worker or node from their last checkpoints. Ray's own retries are
    off, as they would start a task with the checkpoint that it was first given.
    """

    def __init__(self, config: ExecutorConfig, gpu: bool):
        self.config = config
        self.gpu = gpu
        self.gpus = _gpus_per_batch(config, gpu)
        self.cpus: float = config.num_cpus
        self.inputs: dict[Path, _Input] = {}
        self._preflight()

    def run(self, sweep: Sweep, cells: Sequence[Cell]) -> None:
        """Compute `cells`, which the sweep's store lacks."""
        import ray

        running: dict[Any, CellBatch] = {}
        size = stack_size(self.config, len(cells), self.gpus > 0)
        ready = list(batches(cells, sweep.store, size))
        self.cpus = self._cpus_per_batch(len(ready))
        self._submit_all(ready, sweep, running)
        while running:
            streams, _ = ray.wait(list(running), num_returns=1, fetch_local=False)
            stream: Any = streams[0]
            batch = running[stream]
            try:
                event: Any = ray.get(next(stream))
            except StopIteration:
                del running[stream]
            except _transient_faults() as error:
                del running[stream]
                self._submit_all(_again(batch, sweep, error), sweep, running)
            except ray.exceptions.RayTaskError as error:
                del running[stream]
                if isinstance(error.cause, OutOfMemoryError):
                    self._submit_all(sweep.out_of_memory(batch, error.cause), sweep, running)
                else:
                    sweep.failed(batch, error.cause if isinstance(error.cause, UserError) else error)
            else:
                if isinstance(event, _Started):
                    sweep.started(batch)
                else:
                    sweep.handle(batch, event)

    def _submit_all(self, ready: Iterable[CellBatch], sweep: Sweep, running: dict[Any, CellBatch]) -> None:
        for batch in ready:
            running[self._submit(batch, sweep)] = batch

    def _submit(self, batch: CellBatch, sweep: Sweep) -> Any:
        import ray

        inputs = [{name: self._send(path) for name, path in cell.inputs.items()} for cell in batch.cells]
        checkpoints = [state and ray.put(state) for state in checkpoints_of(batch, sweep.store)]
        options = {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "max_retries": 0,
            "name": batch.cells[0].name,
        }
        if self.config.memory_gb is not None:
            options["memory"] = int(self.config.memory_gb * 2**30)
        remote = ray.remote(_execute_remotely).options(**options)
        return remote.remote(batch, inputs, checkpoints, self.config, self.gpu)

    def _cpus_per_batch(self, count: int) -> float:
        """Cores to reserve for each of `count` batches.

        If only a few of them would be left for a second round on this machine, all run at once and share its
        cores: three batches on two cores then take one and a half times as long as one, instead of twice.
        """
        import ray

        cores = ray.cluster_resources().get("CPU", 0)
        here = cluster_address(self.config) is None
        if here and self.config.num_cpus == 1 and cores < count < 2 * cores:
            return math.floor(cores / count / CPU_UNIT) * CPU_UNIT
        return self.config.num_cpus

    def _send(self, path: Path) -> "_Input":
        """Put an input into the object store, once for all cells that read it."""
        if path not in self.inputs:
            self.inputs[path] = _send(path)
        return self.inputs[path]

    def _preflight(self) -> None:
        """Raise UserError if no node has the resources of a cell: Ray would wait for them for ever."""
        import ray

        wanted = {
            "CPU": self.config.num_cpus,
            "GPU": self.gpus,
            "memory": (self.config.memory_gb or 0) * 2**30,
        }
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            largest = {name: max(node.get(name, 0) for node in nodes) for name in wanted}
            raise UserError(
                f"no Ray node can run a cell: executor asks for {_amounts(wanted)}; the most that nodes "
                f"have is {_amounts(largest)}; lower executor.num_cpus, num_gpus or memory_gb"
            )


def _again(batch: CellBatch, sweep: Sweep, error: Exception) -> Iterable[CellBatch]:
    """The batches to run in place of one that was lost with its worker or node."""
    import ray

    # Ray kills a worker when its node's memory runs low, which other processes may have caused.
    last = batch.attempt == TRANSIENT_RETRIES
    if isinstance(error, ray.exceptions.OutOfMemoryError) and (last or len(batch.cells) > 1):
        return sweep.out_of_memory(batch, error)
    return sweep.lost(batch, error)


def _amounts(resources: Mapping[str, float]) -> str:
    return f"{resources['CPU']:g} CPU, {resources['GPU']:g} GPU, {resources['memory'] / 2**30:.1f} GB"


@dataclasses.dataclass(frozen=True)
class _Started:
    """A worker has begun with a batch."""


def _execute_remotely(
    batch: CellBatch,
    inputs: Sequence[Mapping[str, "_Input"]],
    checkpoints: Sequence[Any],
    config: ExecutorConfig,
    gpu: bool,
) -> Iterator[Any]:
    """`execute` on a worker, with inputs from the object store as temporary files."""
    import ray

    # A worker starts in the directory of the code. When Ray unpacks the code for another node on this
    # machine, it replaces that directory with a new one, and the worker's working directory is gone.
    os.chdir("/")
    check_packages(batch.cells[0].identity["packages"])
    yield _Started()
    with temporary_directory() as directory:
        local = [{name: _receive(given, directory) for name, given in files.items()} for files in inputs]
        states = [ref and ray.get(ref) for ref in checkpoints]
        try:
            yield from execute(batch, local, states, config, gpu)
        except UserError as error:
            # The user knows the file by its original path.
            raise UserError(str(error).replace(f"{directory}/", "")) from error


@dataclasses.dataclass(frozen=True)
class _Input:
    """A file, or the files of a directory, on the way to a worker."""

    path: Path
    contents: Mapping[str, Any]
    """Ray objects by path relative to `path`, which is `.` if `path` is a file. Each file is an object of its
    own, as COCO's photos together take 3 GB."""


def _send(path: Path) -> _Input:
    import ray

    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return _Input(path, {str(file.relative_to(path)): ray.put(file.read_bytes()) for file in files})


def _receive(given: _Input, directory: Path) -> Path:
    """Write an input below `directory`, under its original path, unless it is there already.

    A `..` of the path becomes a directory `up`, or the file would be outside `directory`, where an older one
    may be.
    """
    import ray

    path = directory.joinpath(
        *("up" if part == ".." else part for part in given.path.relative_to(given.path.anchor).parts)
    )
    for name, content in given.contents.items():
        file = path / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(ray.get(content))
    return path


def _gpus_per_batch(config: ExecutorConfig, gpu: bool) -> float:
    import ray

    if not gpu or config.device == "cpu":
        return 0
    if config.num_gpus != "auto":
        return config.num_gpus
    return 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0


@functools.cache
def _transient_faults() -> tuple[type[Exception], ...]:
    """Errors that the cell did not cause, and that may not happen again."""
    from ray import exceptions

    return (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.ObjectLostError,
        exceptions.LocalRayletDiedError,
    )
