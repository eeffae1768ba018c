"""How cells are computed: the sweep that stores and records them, this machine's processes, a task's call.

An executor groups cells into batches. :class:`LocalExecutor` hands these to forks of this process, the one of
:mod:`pipelines.engine.on_ray` to a cluster. There, :func:`execute` calls a batch's task, and its events come
back to the :class:`Sweep`. On all executors the same generator runs, so results are byte-identical.
"""

import collections
import contextlib
import ctypes
import dataclasses
import gc
import json
import logging
import multiprocessing
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import annotated_types
import joblib
import psutil
import tqdm

from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.disks import DiskFullError, disk_full_error, is_disk_full
from pipelines.engine.processes import GRACE_SECONDS, ends_with
from pipelines.engine.provenance import Made, git_commit
from singleshot.errors import UserError, is_out_of_memory
from singleshot.job import Artifact, Checkpoint, Event, Job, Metrics, Progress, Task
from singleshot.secrets import without_secrets

log = logging.getLogger(__name__)

TRANSIENT_RETRIES = 3
"""How often cells are started again whose process or node was lost."""
ON = "continuing from the last checkpoint"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
KEPT_BYTES = 2**31 - 1
"""Size of an array above which its memory returns to the system: the largest number that mallopt(3) takes."""


@dataclasses.dataclass(frozen=True)
class ExecutorConfig:
    """Where cells run. These settings change no result and are in no digest."""

    kind: Literal["local", "ray"] = "ray"
    address: str | None = None
    """Address (`host:port`) of a Ray cluster that has this machine as a node; RAY_ADDRESS overrides it. null:
    a temporary cluster on this machine, only for the training of agents."""
    num_cpus: Annotated[int, annotated_types.Ge(1)] = 1
    """Number of cores for each group of cells. It is also the number of compute threads (a different one may
    round differently) and of the processes that step the environments of a large stack."""
    num_gpus: Annotated[float, annotated_types.Ge(0)] | Literal["auto"] = "auto"
    """Number of GPUs for each group of cells that can use one; with a fraction, groups share a GPU. `auto`:
    1 if the cluster has any."""
    memory_gb: Annotated[float, annotated_types.Gt(0)] | None = None
    """Memory to reserve for each group of cells, in GiB. null: no memory is reserved."""
    stack_size: Annotated[int, annotated_types.Ge(1)] | Literal["auto"] = "auto"
    """Number of agents that train as one batched model. `auto`: 1 on a CPU; on a GPU, all agents of an
    environment and algorithm, if its free memory holds them. A stack that runs out of memory is halved, and
    continues from its last checkpoints."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of cells that can use a GPU. `auto`: a GPU if there is one."""

    def stack_of(self, cells: Sequence[Cell], on_gpu: bool) -> int:
        """The largest number of `cells` in a batch."""
        if self.stack_size != "auto":
            return self.stack_size
        return len(cells) if on_gpu else 1


@dataclasses.dataclass(frozen=True)
class CellBatch:
    """Cells for one call of their task. Either none has a checkpoint, or all have one of the same step."""

    cells: tuple[Cell, ...]
    attempt: int = 0
    commit: str = "unknown"


def batches(
    cells: Sequence[Cell], store: CellStore, stack_size: int, attempt: int = 0
) -> Iterator[CellBatch]:
    """Group cells that may be stacked and are at the same step, at most `stack_size` in a batch."""
    groups: dict[Any, list[Cell]] = collections.defaultdict(list)
    for cell in cells:
        checkpoint = store.checkpoint(cell)
        groups[cell.stack or cell.digest, checkpoint and checkpoint.step].append(cell)
    commit = git_commit()
    for group in groups.values():
        for start in range(0, len(group), stack_size):
            yield CellBatch(tuple(group[start : start + stack_size]), attempt, commit)


def checkpoints_of(batch: CellBatch, store: CellStore) -> list[bytes | None]:
    """The states from which the cells of a batch continue; None for a cell without a checkpoint."""
    saved = [store.checkpoint(cell) for cell in batch.cells]
    return [checkpoint.state if checkpoint else None for checkpoint in saved]


@dataclasses.dataclass(frozen=True)
class Finished:
    """The last event of a job, with the job's files by their paths relative to the output directory."""

    job: int
    files: Mapping[str, bytes]
    made: Made


class OutOfMemoryError(Exception):
    """The cells of a batch don't fit into memory together; half of them may fit."""


class LostError(Exception):
    """The process or node that computed a batch was lost."""


class Recorder(Protocol):
    """What records the events of cells."""

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
        """Record how a batch has ended, and return the batches to run instead.

        There are none if it is done or has failed.

        Raises:
            DiskFullError: it ended because a disk is full, as all others would.
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


class LocalExecutor:
    """Computes cells in forks of this process, which have imported what it has.

    On a GPU, and where a cell has several threads, cells run in this process, one at a time. A fork can use
    neither OpenMP's threads nor a GPU once its parent has: it hangs, or fails. So all other cells run in
    forks, also a single one: the next step of the stage may need forks.

    The forks are not those of `concurrent.futures`: its pool gives up all of them when one is killed, cannot
    be ended in the middle of a cell, and hands back only results, no checkpoints.
    """

    def __init__(self, config: ExecutorConfig, gpu: bool):
        self.config = config
        self.gpu = gpu
        self._idle: list[_Fork] = []

    def close(self) -> None:
        """End the forks, which `run` leaves for its next call."""
        for fork in self._idle:
            fork.close()

    def run(self, sweep: Sweep, cells: Sequence[Cell]) -> None:
        """Compute `cells`, which the sweep's store lacks."""
        on_gpu = device_of(self.config, self.gpu) == "cuda"
        pending = deque(batches(cells, sweep.store, self.config.stack_of(cells, on_gpu)))
        if on_gpu or self.config.num_cpus > 1:
            self._run_here(sweep, pending)
        else:
            self._run_in_forks(sweep, pending)

    def _run_here(self, sweep: Sweep, pending: deque[CellBatch]) -> None:
        while pending:
            batch = pending.popleft()
            sweep.started(batch)
            for event in _events(batch, checkpoints_of(batch, sweep.store), self.config, self.gpu):
                if event is None or isinstance(event, Exception):
                    pending.extend(sweep.ended(batch, event))
                else:
                    sweep.handle(batch, event)

    def _run_in_forks(self, sweep: Sweep, pending: deque[CellBatch]) -> None:
        places = min(joblib.cpu_count(), len(pending))
        if self.config.memory_gb is not None:
            fitting = int(psutil.virtual_memory().total / 2**30 / self.config.memory_gb)
            places = max(min(places, fitting), 1)
        busy: dict[Connection, _Fork] = {}
        try:
            while pending or busy:
                while pending and len(busy) < places:
                    fork = self._idle.pop() if self._idle else _Fork(self.config, self.gpu)
                    busy[fork.connection] = fork
                    fork.begin(pending.popleft(), sweep)
                for connection in wait(list(busy)):
                    assert isinstance(connection, Connection)
                    fork = busy[connection]
                    event = fork.next()
                    if event is not None and not isinstance(event, Exception):
                        sweep.handle(fork.batch, event)
                        continue
                    del busy[connection]
                    pending.extend(sweep.ended(fork.batch, event))
                    if isinstance(event, LostError):
                        fork.close()
                    else:
                        self._idle.append(fork)
        finally:
            for fork in busy.values():
                fork.close()


class _Fork:
    def __init__(self, config: ExecutorConfig, gpu: bool):
        self.connection, theirs = multiprocessing.Pipe()
        arguments = theirs, psutil.Process(), config, gpu
        self._process = multiprocessing.get_context("fork").Process(target=_compute, args=arguments)
        with theirs:
            self._process.start()

    def begin(self, batch: CellBatch, sweep: Sweep) -> None:
        """Compute a batch from its checkpoints."""
        self.batch = batch
        sweep.started(batch)
        with contextlib.suppress(ConnectionError):  # it was killed while it was idle, as `next` will say
            self.connection.send((batch, checkpoints_of(batch, sweep.store)))

    def next(self) -> Event | Finished | Exception | None:
        """The next event of the batch; in the end an error, or None."""
        try:
            event: Event | Finished | Exception | None = self.connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            status = self._process.exitcode or 0
            ending = signal.Signals(-status).name if status < 0 else f"status {status}"
            return LostError(f"its process ended with {ending}")
        return event

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join(GRACE_SECONDS)
        self._process.kill()
        self._process.join()
        self.connection.close()


def _compute(connection: Connection, driver: psutil.Process, config: ExecutorConfig, gpu: bool) -> None:
    """Send the events of the batches that come, in a fork of `driver` that ends with it."""
    with contextlib.suppress(KeyboardInterrupt, EOFError, ConnectionError), ends_with([driver]):
        while True:
            batch, states = connection.recv()
            for event in _events(batch, states, config, gpu):
                connection.send(event)


def _events(
    batch: CellBatch, states: Sequence[bytes | None], config: ExecutorConfig, gpu: bool
) -> Iterator[Event | Finished | Exception | None]:
    try:
        yield from execute(batch, [cell.inputs for cell in batch.cells], states, config, gpu)
    except (UserError, OutOfMemoryError) as error:
        yield error
    except Exception:  # which another process may be unable to read
        yield RuntimeError(f"in the cell's process:\n{traceback.format_exc()}")
    else:
        yield None


def execute(
    batch: CellBatch,
    inputs: Sequence[Mapping[str, Path]],
    checkpoints: Sequence[bytes | None],
    config: ExecutorConfig,
    gpu: bool,
) -> Iterator[Event | Finished]:
    """Call the task of `batch`; yields its events, then the files of each job."""
    import threadpoolctl
    import torch

    torch.set_num_threads(config.num_cpus)
    keep_freed_memory()
    device = device_of(config, gpu)
    started = time.monotonic()
    temporary = tempfile.TemporaryDirectory(prefix="singleshot-")
    with temporary as scratch, threadpoolctl.threadpool_limits(config.num_cpus):
        jobs = []
        for cell, given, state in zip(batch.cells, inputs, checkpoints, strict=True):
            output = Path(tempfile.mkdtemp(dir=scratch))
            jobs.append(Job(cell.params, given, output, device, state, batch.commit))
        yield from _call(batch.cells[0].task, jobs)
        seconds = (time.monotonic() - started) / len(jobs)
        made = Made.now(seconds, batch.commit, device, batch.cells[0].identity["packages"])
        for index, job in enumerate(jobs):
            files = sorted(path for path in job.output.rglob("*") if path.is_file())
            contents = {str(path.relative_to(job.output)): path.read_bytes() for path in files}
            yield Finished(index, contents, made)


def _call(task: Task, jobs: Sequence[Job]) -> Iterator[Event]:
    """The events of a task.

    Raises:
        OutOfMemoryError: a GPU or this machine ran out of memory. The task's own exception is released first,
            and with it the frames that hold its tensors.
        DiskFullError: a disk of this machine is full.
    """
    import torch

    try:
        yield from task(jobs)
        return
    except Exception as error:
        if is_disk_full(error):
            raise disk_full_error(error) from error
        if isinstance(error, UserError) or not is_out_of_memory(error):
            raise
        reason = first_line(error)
    gc.collect()
    torch.cuda.empty_cache()
    raise OutOfMemoryError(reason)


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def device_of(config: ExecutorConfig, gpu: bool) -> str:
    """The torch device on this machine for a cell; `gpu` says whether the cell can use a GPU.

    Raises:
        UserError: the configuration asks for a GPU, and there is none.
    """
    import torch

    if config.device == "cpu" or not gpu:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if config.device == "cuda":
        raise UserError("executor.device is cuda, but torch finds no CUDA device; set it to auto or cpu")
    return "cpu"


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed arrays for new ones, if it is glibc.

    By default, it returns the memory of large arrays to the system, which has to clear each page before it
    hands it out again. This takes 6 to 10 % of the time of a dense agent's training, and 7 % of a style
    transfer.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
