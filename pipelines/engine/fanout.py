"""Run cells on an executor: `local`, one after another in this process, or `ray`, on a cluster.

Both run the same generator, :func:`execute`, and hand its events to the same :class:`_Sweep`, so
results are byte-identical. On Ray, inputs travel through the object store and results come back as
events: no shared disk is assumed.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import annotated_types
import tqdm

from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.lifecycle import takes_its_children_along
from pipelines.engine.provenance import Made, git_commit
from tasks.errors import UserError
from tasks.job import Artifact, Checkpoint, Event, Job, Metrics, Progress

log = logging.getLogger(__name__)

TRANSIENT_RETRIES = 3


@dataclasses.dataclass(frozen=True)
class ExecutorConfig:
    """Where cells run. Nothing here changes a result, so it is part of no digest."""

    kind: Literal["local", "ray"] = "ray"
    address: str | None = None
    """Ray cluster to join (`host:port`, `auto`, `ray://…`), after RAY_ADDRESS's. None: a local one."""
    num_cpus: Annotated[int, annotated_types.Ge(1)] = 1
    """Cores, and compute threads, of each group of cells. Another number may round differently."""
    num_gpus: Annotated[float, annotated_types.Ge(0)] | Literal["auto"] = "auto"
    """GPUs of each group of cells that can use one; fractions share. `auto`: 1 where the cluster has any."""
    memory_gb: Annotated[float, annotated_types.Gt(0)] | None = None
    """Memory to reserve for each group of cells. None: not reserved."""
    stack_size: Annotated[int, annotated_types.Ge(1)] | Literal["auto"] = "auto"
    """How many agents train as one batched model. `auto`: 1 on a CPU, all that share a data set on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclasses.dataclass(frozen=True)
class Finished:
    """The last event of a job: the files it left, by name relative to its output directory."""

    job: int
    files: Mapping[str, bytes]
    made: Made


class Recorder(Protocol):
    """Who is told of a cell's fate and its metrics: :class:`pipelines.engine.tracking.Tracker`."""

    def reused(self, cells: Sequence[Cell], store: CellStore) -> None:  # noqa: D102
        ...

    def started(self, cell: Cell) -> None:  # noqa: D102
        ...

    def metrics(self, cell: Cell, step: int, values: Mapping[str, float]) -> None:  # noqa: D102
        ...

    def artifact(self, cell: Cell, name: str, file: Path) -> None:  # noqa: D102
        ...

    def flush(self) -> None:  # noqa: D102
        ...

    def finished(self, cell: Cell, directory: Path) -> None:  # noqa: D102
        ...

    def failed(self, cell: Cell, reason: str) -> None:  # noqa: D102
        ...


class CellsFailedError(RuntimeError):
    """Some cells failed; the message has the first one's name, parameters and traceback."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Cells handed to their task in one call. All are fresh, or all have a checkpoint of the same step."""

    cells: tuple[Cell, ...]
    attempt: int = 0
    commit: str = "unknown"


def execute(
    batch: Batch,
    inputs: Sequence[Mapping[str, Path]],
    checkpoints: Sequence[bytes | None],
    config: ExecutorConfig,
    gpu: bool,
) -> Iterator[Event | Finished]:
    """Call the task of `batch` and pass its events on, then the files of each job."""
    import threadpoolctl
    import torch

    torch.set_num_threads(config.num_cpus)
    device = device_of(config, gpu)
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="singleshot-") as scratch,
        threadpoolctl.threadpool_limits(config.num_cpus),
    ):
        jobs = []
        for index, cell in enumerate(batch.cells):
            output = Path(scratch) / str(index)
            output.mkdir()
            jobs.append(Job(cell.params, inputs[index], output, device, checkpoints[index], batch.commit))
        yield from batch.cells[0].task(jobs)
        made = Made.now((time.monotonic() - started) / len(jobs), batch.commit, device)
        for index, job in enumerate(jobs):
            files = sorted(path for path in job.output.rglob("*") if path.is_file())
            contents = {str(path.relative_to(job.output)): path.read_bytes() for path in files}
            yield Finished(index, contents, made)


def device_of(config: ExecutorConfig, gpu: bool) -> str:
    """Torch device of a cell that can use a GPU (`gpu`) or cannot, on this machine.

    Raises:
        UserError: a GPU is asked for, and there is none.
    """
    import torch

    if config.device == "cpu" or not gpu:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if config.device == "cuda":
        raise UserError("executor.device is cuda, but torch finds no CUDA device; set it to auto or cpu")
    return "cpu"


def fan_out(
    cells: Sequence[Cell],
    config: ExecutorConfig,
    store: CellStore,
    recorder: Recorder,
    *,
    gpu: bool = False,
    alone: bool = False,
    brief: bool = False,
) -> None:
    """Compute the cells that `store` lacks. On return it has them all.

    Args:
        cells: the whole sweep; those already in the store are reused.
        config: where and how to run.
        store: where cells are found and kept.
        recorder: told of every cell's fate and metrics.
        gpu: whether the task can make use of a GPU.
        alone: one cell at a time, whatever the executor: for cells that measure seconds.
        brief: cells of a second or so, for which no cluster is started; one that is there is used.

    Raises:
        CellsFailedError: when every other cell is done, if some failed.
        UserError: a cell found something wrong that the user can mend.
    """
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
        brief = brief or len(turns[0]) == 1
        with _executor(config, gpu, brief) as executor, _Sweep(missing, store, recorder) as sweep:
            for turn in turns:
                executor.run(sweep, turn)
        sweep.raise_failures()


class _Sweep:
    """The driver's side of running cells: events in, store and records out, one progress bar."""

    def __init__(self, cells: Sequence[Cell], store: CellStore, recorder: Recorder):
        self.store = store
        self.recorder = recorder
        self.failures: list[tuple[Cell, BaseException, str]] = []
        self.progress = dict.fromkeys((cell.digest for cell in cells), 0.0)
        self.running: set[str] = set()
        # A log file gets a line now and then, a terminal a bar that moves.
        self.bar = tqdm.tqdm(
            total=len(cells),
            unit="cell",
            bar_format="{percentage:3.0f}%|{bar}| {n:.1f}/{total} cells [{elapsed}<{remaining}{postfix}]",
            mininterval=0.5 if sys.stderr.isatty() else 30,
            smoothing=0,  # cells end in bursts: time left by the mean rate
        )

    def __enter__(self) -> "_Sweep":
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.flush()
        self.bar.close()

    def started(self, batch: Batch) -> None:
        for cell in batch.cells:
            self.running.add(cell.digest)
            self.recorder.started(cell)
        self._show()

    def handle(self, batch: Batch, event: Event | Finished) -> None:
        if isinstance(event, Progress):
            for cell in batch.cells:
                self.progress[cell.digest] = event.fraction
        else:
            self._handle_one(batch.cells[event.job], event)
        self._show()

    def _handle_one(self, cell: Cell, event: Metrics | Checkpoint | Artifact | Finished) -> None:
        match event:
            case Metrics():
                self.recorder.metrics(cell, event.step, event.values)
            case Checkpoint():
                # Metrics first: a replay after a crash in between is recognised by its step.
                self.recorder.flush()
                self.store.save_checkpoint(cell, event.step, event.state)
            case Artifact():
                file = self.store.save_artifact(cell, event.name, event.content)
                self.recorder.artifact(cell, event.name, file)
            case Finished():
                self.recorder.flush()  # whoever finds the cell in the store will not record its metrics
                self.store.commit(cell, event.files, event.made)
                self.recorder.finished(cell, self.store.path(cell.digest))
                self.progress[cell.digest] = 1.0
                self.running.discard(cell.digest)

    def failed(self, batch: Batch, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        for cell in batch.cells:
            self.running.discard(cell.digest)
            self.failures.append((cell, error, trace))
            self.recorder.failed(cell, trace)
        self._show()

    def raise_failures(self) -> None:
        if not self.failures:
            return
        cell, error, trace = self.failures[0]
        if isinstance(error, UserError):
            raise UserError(f"{cell.name}: {error}")
        others = "".join(f"\n  also failed: {other.name}" for other, _, _ in self.failures[1:])
        params = json.dumps(dataclasses.asdict(cell.params), indent=1)
        raise CellsFailedError(
            f"{trace}\ncell {cell.name} failed; its parameters:\n{params}{others}\nAll other cells are kept."
        )

    def _show(self) -> None:
        self.bar.n = sum(self.progress.values())
        self.bar.set_postfix_str(f"{len(self.running)} running, {len(self.failures)} failed", refresh=False)
        self.bar.update(0)


class _Local:
    """Cells one after another in this process."""

    def __init__(self, config: ExecutorConfig, gpu: bool):
        self.config = config
        self.gpu = gpu

    def run(self, sweep: _Sweep, cells: Sequence[Cell]) -> None:
        for batch in batches(
            cells,
            sweep.store,
            _stack_size(self.config, len(cells), device_of(self.config, self.gpu) == "cuda"),
        ):
            sweep.started(batch)
            try:
                for event in execute(
                    batch,
                    [cell.inputs for cell in batch.cells],
                    _checkpoints(batch, sweep.store),
                    self.config,
                    self.gpu,
                ):
                    sweep.handle(batch, event)
            except Exception as error:
                sweep.failed(batch, error)


class _Ray:
    """Cells as Ray tasks.

    What a lost worker or node took with it the driver tries again, from its last checkpoint. Ray's own
    retries would start a task with the checkpoint it was first given.
    """

    def __init__(self, config: ExecutorConfig, gpu: bool):
        import ray

        self.config = config
        self.gpu = gpu
        self.gpus = _gpus_per_batch(config, gpu)
        self.input_refs: dict[Path, ray.ObjectRef] = {}
        self._preflight()

    def run(self, sweep: _Sweep, cells: Sequence[Cell]) -> None:
        import ray

        running: dict[Any, Batch] = {}
        self._submit_all(cells, sweep, running)
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
                if batch.attempt == TRANSIENT_RETRIES:
                    sweep.failed(batch, error)
                    continue
                log.warning(
                    "%s: %s; going on from the last checkpoint", batch.cells[0].name, type(error).__name__
                )
                unfinished = [cell for cell in batch.cells if not sweep.store.has(cell)]
                self._submit_all(unfinished, sweep, running, batch.attempt + 1)
            except ray.exceptions.RayTaskError as error:
                del running[stream]
                sweep.failed(batch, error.cause if isinstance(error.cause, UserError) else error)
            else:
                if isinstance(event, _Started):
                    sweep.started(batch)
                else:
                    sweep.handle(batch, event)

    def _submit_all(
        self, cells: Sequence[Cell], sweep: _Sweep, running: dict[Any, Batch], attempt: int = 0
    ) -> None:
        stack_size = _stack_size(self.config, len(cells), self.gpus > 0)
        for batch in batches(cells, sweep.store, stack_size, attempt):
            running[self._submit(batch, sweep)] = batch

    def _submit(self, batch: Batch, sweep: _Sweep) -> Any:
        import ray

        inputs = [{name: self._put(path) for name, path in cell.inputs.items()} for cell in batch.cells]
        checkpoints = [state and ray.put(state) for state in _checkpoints(batch, sweep.store)]
        options = {
            "num_cpus": self.config.num_cpus,
            "num_gpus": self.gpus,
            "max_retries": 0,
            "name": batch.cells[0].name,
        }
        if self.config.memory_gb is not None:
            options["memory"] = int(self.config.memory_gb * 2**30)
        remote = ray.remote(_execute_remotely).options(**options)
        return remote.remote(batch, inputs, checkpoints, self.config, self.gpu)

    def _put(self, path: Path) -> Any:
        import ray

        if path not in self.input_refs:
            self.input_refs[path] = ray.put(_read_input(path))
        return self.input_refs[path]

    def _preflight(self) -> None:
        """Ray waits for ever for resources that no node has; say so before anything starts."""
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


def _amounts(resources: Mapping[str, float]) -> str:
    return f"{resources['CPU']:g} CPU, {resources['GPU']:g} GPU, {resources['memory'] / 2**30:.1f} GB"


@dataclasses.dataclass(frozen=True)
class _Started:
    """A worker has begun with a batch."""


def _execute_remotely(
    batch: Batch,
    inputs: Sequence[Mapping[str, Any]],
    checkpoints: Sequence[Any],
    config: ExecutorConfig,
    gpu: bool,
) -> Iterator[Any]:
    """`execute` on a worker: inputs from the object store to files of this node, which go with the task."""
    import ray

    yield _Started()
    with tempfile.TemporaryDirectory(prefix="singleshot-inputs-") as directory:
        local = [
            {name: _materialise(ref, Path(directory)) for name, ref in files.items()} for files in inputs
        ]
        states = [ref and ray.get(ref) for ref in checkpoints]
        try:
            yield from execute(batch, local, states, config, gpu)
        except UserError as error:
            # The user knows the file by its own path.
            raise UserError(str(error).replace(f"{directory}/", "")) from error


@dataclasses.dataclass(frozen=True)
class _Input:
    """A file, or a directory's files, on the way to a worker."""

    path: Path
    contents: Mapping[str, bytes]
    """By path relative to `path`; a file itself is `.`."""


def _read_input(path: Path) -> _Input:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return _Input(path, {str(file.relative_to(path)): file.read_bytes() for file in files})


def _materialise(ref: Any, directory: Path) -> Path:
    """Write an input below `directory`, under its own path, unless it is there already."""
    import ray

    given: _Input = ray.get(ref)
    path = directory / given.path.relative_to(given.path.anchor)
    for name, content in given.contents.items():
        file = path / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    return path


def batches(cells: Sequence[Cell], store: CellStore, stack_size: int, attempt: int = 0) -> Iterator[Batch]:
    """Group cells that may be stacked and stand at the same step, at most `stack_size` at a time."""
    groups: dict[Any, list[Cell]] = collections.defaultdict(list)
    for cell in cells:
        checkpoint = store.checkpoint(cell)
        groups[cell.stack or cell.digest, checkpoint and checkpoint.step].append(cell)
    commit = git_commit()
    for group in groups.values():
        for start in range(0, len(group), stack_size):
            yield Batch(tuple(group[start : start + stack_size]), attempt, commit)


def _checkpoints(batch: Batch, store: CellStore) -> list[bytes | None]:
    saved = [store.checkpoint(cell) for cell in batch.cells]
    return [checkpoint.read() if checkpoint else None for checkpoint in saved]


def _stack_size(config: ExecutorConfig, cells: int, on_gpu: bool) -> int:
    if config.stack_size != "auto":
        return config.stack_size
    return cells if on_gpu else 1


@contextlib.contextmanager
def _executor(config: ExecutorConfig, gpu: bool, brief: bool) -> Iterator[_Local | _Ray]:
    # A cluster of this machine's own takes six seconds to start.
    if config.kind == "local" or (brief and cluster_address(config) is None):
        yield _Local(config, gpu)
        return
    with ray_cluster(config):
        yield _Ray(config, gpu)


@contextlib.contextmanager
def ray_cluster(config: ExecutorConfig) -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS or the configuration names, else start one here for the time being.

    Raises:
        UserError: the cluster cannot be reached.
    """
    # Ray reads these when it is imported. Without the second, a task with num_gpus=0 sees every GPU.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    # Said outright: a cluster with a token can be joined by host:port, a local one starts without a warning.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    address = cluster_address(config)
    options: dict[str, Any] = {"log_to_driver": True, "logging_level": logging.WARNING}
    if address is None:
        # Without `local`, Ray joins whatever cluster it finds on this machine, anyone's, even a dying one.
        options |= {"address": "local", "include_dashboard": False}
    else:
        # Workers have no checkout of ours: send the code, and nothing else.
        options |= {
            "address": address,
            "runtime_env": {"working_dir": str(Path.cwd()), "excludes": _not_code()},
        }
    # Ray puts its own SIGTERM handler in, which exits without a word; ours ends the stage's runs as well.
    on_sigterm = signal.getsignal(signal.SIGTERM)
    with takes_its_children_along() if address is None else contextlib.nullcontext():
        try:
            if address is not None:
                check_reachable(address)
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise UserError(
                f"Ray cluster {address or 'on this machine'}: {error}; `python -m pipelines doctor` says more"
            ) from error
        try:
            signal.signal(signal.SIGTERM, on_sigterm)
            yield
        finally:
            ray.shutdown()


def cluster_address(config: ExecutorConfig) -> str | None:
    """The cluster to join; None for one of our own on this machine."""
    return os.environ.get("RAY_ADDRESS") or config.address


def check_reachable(address: str) -> None:
    """Raise ConnectionError if nothing listens at `[ray://]host:port`. Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise ConnectionError(f"nothing answers there ({error})") from error


def _not_code() -> list[str]:
    """What of the repository's top level Ray workers do without."""
    return [f"/{path.name}" for path in Path.cwd().iterdir() if path.name not in {"tasks", "pipelines"}]


def _gpus_per_batch(config: ExecutorConfig, gpu: bool) -> float:
    import ray

    if not gpu or config.device == "cpu":
        return 0
    if config.num_gpus != "auto":
        return config.num_gpus
    return 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0


@functools.cache
def _transient_faults() -> tuple[type[Exception], ...]:
    """What is not the cell's fault, and may go better elsewhere."""
    from ray import exceptions

    return (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.ObjectLostError,
        exceptions.LocalRayletDiedError,
    )
