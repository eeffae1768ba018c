"""Cells as Ray tasks. Workers need the installed dependencies and the network, and nothing else.

Code travels as Ray's `working_dir`, inputs and checkpoints through the object store, and metrics,
checkpoints and results come back as events, so no worker reads the driver's disk.
"""

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.engine.cells import Cell
from pipelines.engine.execution import (
    CellBatch,
    ExecutorConfig,
    LostError,
    OutOfMemoryError,
    batches,
    checkpoints_of,
    execute,
    first_line,
    stack_size,
)
from pipelines.engine.sources import check_packages
from pipelines.engine.sweep import TRANSIENT_RETRIES, Sweep
from singleshot.errors import UserError


class RayExecutor:
    """Computes cells as Ray tasks.

    The driver retries the cells of a lost worker or node from their last checkpoints. Ray's own retries are
    off, as they would start a task with the checkpoint that it was first given.
    """

    def __init__(self, config: ExecutorConfig, gpu: bool):
        import ray

        self.config = config
        self.gpu = gpu
        self.gpus: float = 0
        if gpu and config.device != "cpu":
            there = min(ray.cluster_resources().get("GPU", 0), 1)
            self.gpus = int(there) if config.num_gpus == "auto" else config.num_gpus
        self.inputs: dict[Path, _Input] = {}
        self._check_resources()

    def run(self, sweep: Sweep, cells: Sequence[Cell]) -> None:
        """Compute `cells`, which the sweep's store lacks."""
        import ray
        from ray import exceptions

        # Errors that the cell did not cause, and that may not happen again.
        lost = (
            exceptions.WorkerCrashedError,
            exceptions.NodeDiedError,
            exceptions.OutOfMemoryError,
            exceptions.ObjectLostError,
            exceptions.LocalRayletDiedError,
        )
        running: dict[Any, CellBatch] = {}
        ready = batches(cells, sweep.store, stack_size(self.config, len(cells), self.gpus > 0))
        while True:
            running |= {self._submit(batch, sweep): batch for batch in ready}
            if not running:
                return
            ready = iter(())
            streams, _ = ray.wait(list(running), num_returns=1, fetch_local=False)
            stream: Any = streams[0]
            batch = running[stream]
            try:
                event: Any = ray.get(next(stream))
            except StopIteration:
                del running[stream]
            except (*lost, exceptions.RayTaskError) as error:
                del running[stream]
                ready = iter(sweep.ended(batch, fault(batch, error)))
            else:
                if isinstance(event, _Started):
                    sweep.started(batch)
                else:
                    sweep.handle(batch, event)

    def _submit(self, batch: CellBatch, sweep: Sweep) -> Any:
        import ray

        inputs = [{name: self._send(path) for name, path in cell.inputs.items()} for cell in batch.cells]
        checkpoints = [state and ray.put(state) for state in checkpoints_of(batch, sweep.store)]
        memory = {"memory": int(self.config.memory_gb * 2**30)} if self.config.memory_gb else {}
        remote = ray.remote(execute_remotely).options(
            num_cpus=self.config.num_cpus,
            num_gpus=self.gpus,
            max_retries=0,
            name=batch.cells[0].name,
            **memory,
        )
        return remote.remote(batch, inputs, checkpoints, self.config, self.gpu)

    def _send(self, path: Path) -> "_Input":
        import ray

        if path not in self.inputs:
            files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
            contents = {str(file.relative_to(path)): ray.put(file.read_bytes()) for file in files}
            self.inputs[path] = _Input(path, contents)
        return self.inputs[path]

    def _check_resources(self) -> None:
        """Raise UserError if no node has the resources of a cell: Ray would wait for them for ever."""
        import ray

        memory = (self.config.memory_gb or 0) * 2**30
        wanted = {"CPU": self.config.num_cpus, "GPU": self.gpus, "memory": memory}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            asked = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items())
            raise UserError(
                f"no Ray node can run a cell: executor asks for {asked} (see `ray status`); lower "
                "executor.num_cpus, num_gpus or memory_gb"
            )


def fault(batch: CellBatch, error: Exception) -> Exception:
    """What the end of a batch's stream means to the sweep."""
    from ray import exceptions

    if isinstance(error, exceptions.RayTaskError):
        known = isinstance(error.cause, UserError | OutOfMemoryError)
        return error.cause if known else error
    # Ray kills a worker when its node's memory runs low, which other processes may have caused.
    last = batch.attempt == TRANSIENT_RETRIES
    if isinstance(error, exceptions.OutOfMemoryError) and (last or len(batch.cells) > 1):
        return OutOfMemoryError(first_line(error))
    return LostError(type(error).__name__)


@dataclasses.dataclass(frozen=True)
class _Started:
    """A worker has begun with a batch."""


@dataclasses.dataclass(frozen=True)
class _Input:
    path: Path
    contents: Mapping[str, Any]
    """Ray objects by path relative to `path`, which is `.` if `path` is a file. Each file is an object of its
    own, as COCO's photos together take 3 GB."""

    def receive(self, directory: Path) -> Path:
        """Write it below `directory`, under its original path, unless it is there already.

        A `..` of the path becomes a directory `up`, or the file would be outside `directory`, where an older
        one may be.
        """
        import ray

        parts = self.path.relative_to(self.path.anchor).parts
        path = directory.joinpath(*("up" if part == ".." else part for part in parts))
        for name, content in self.contents.items():
            file = path / name
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(ray.get(content))
        return path


def execute_remotely(
    batch: CellBatch,
    inputs: Sequence[Mapping[str, _Input]],
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
    with tempfile.TemporaryDirectory(prefix="singleshot-") as directory:
        local = [{name: given.receive(Path(directory)) for name, given in files.items()} for files in inputs]
        states = [ref and ray.get(ref) for ref in checkpoints]
        try:
            yield from execute(batch, local, states, config, gpu)
        except UserError as error:
            # The user knows the file by its original path.
            error.args = (str(error).replace(f"{directory}/", ""),)
            raise
