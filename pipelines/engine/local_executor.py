"""Cells on this machine, as many at a time as it has cores for."""

import contextlib
import multiprocessing
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import joblib
import psutil

from pipelines.engine.cells import Cell
from pipelines.engine.disks import DiskFullError
from pipelines.engine.execution import (
    CellBatch,
    ExecutorConfig,
    Finished,
    OutOfMemoryError,
    batches,
    checkpoints_of,
    device_of,
    execute,
    stack_size,
)
from pipelines.engine.processes import GRACE_SECONDS, ends_with
from pipelines.engine.sweep import Sweep
from tasks.job import Event


class LocalExecutor:
    """Computes cells in forks of this process, which have imported what it has.

    On a GPU, and where a cell has several threads, cells run in this process, one at a time. A fork can use
    neither OpenMP's threads nor a GPU once its parent has: it hangs, or fails. So all other cells run in
    forks, also a single one: the next step of the stage may need forks.
    """

    def __init__(self, config: ExecutorConfig, gpu: bool):
        self.config = config
        self.gpu = gpu

    def run(self, sweep: Sweep, cells: Sequence[Cell]) -> None:
        """Compute `cells`, which the sweep's store lacks."""
        on_gpu = device_of(self.config, self.gpu) == "cuda"
        pending = deque(batches(cells, sweep.store, stack_size(self.config, len(cells), on_gpu)))
        here = on_gpu or self.config.num_cpus > 1
        places = 1 if here else max(min(_places(self.config), len(pending)), 1)
        idle = [(_Here if here else _Fork)(self.config, self.gpu) for _ in range(places)]
        busy: list[_Worker] = []
        try:
            while pending or busy:
                while pending and idle:
                    batch = pending.popleft()
                    sweep.started(batch)
                    busy.append(idle.pop())
                    busy[-1].begin(batch, checkpoints_of(batch, sweep.store))
                for worker in _with_news(busy):
                    again = _handle_next(worker, sweep)
                    if again is not None:
                        busy.remove(worker)
                        idle.append(worker)
                        pending.extend(again)
        finally:
            for worker in [*busy, *idle]:
                worker.close()


def _places(config: ExecutorConfig) -> int:
    """The number of batches that this machine's cores and memory allow at a time."""
    cores = joblib.cpu_count()
    if config.memory_gb is None:
        return cores
    return min(cores, int(psutil.virtual_memory().total / 2**30 / config.memory_gb))


class ProcessLostError(Exception):
    """A process that computed cells was killed."""


class _Here:
    """Computes batches in this process."""

    def __init__(self, config: ExecutorConfig, gpu: bool):
        self._config, self._gpu = config, gpu

    def begin(self, batch: CellBatch, states: Sequence[bytes | None]) -> None:
        """Compute a batch from the states of its checkpoints."""
        self.batch = batch
        self._events = _events(batch, states, self._config, self._gpu)

    def next(self) -> Event | Finished:
        """The next event of the batch. Raises StopIteration at the end, and whatever the task raises."""
        return next(self._events)

    def close(self) -> None:
        """The worker is no longer needed."""


class _Fork:
    """Computes batches in a fork of this process, or in a new one if that was killed."""

    def __init__(self, config: ExecutorConfig, gpu: bool):
        self._config, self._gpu = config, gpu
        self._start()

    def _start(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        arguments = theirs, psutil.Process(), self._config, self._gpu
        self._process = multiprocessing.get_context("fork").Process(target=_compute, args=arguments)
        with theirs:
            self._process.start()

    def begin(self, batch: CellBatch, states: Sequence[bytes | None]) -> None:
        """Compute a batch from the states of its checkpoints."""
        if not self._process.is_alive():
            self.connection.close()
            self._start()
        self.batch = batch
        self.connection.send((batch, states))

    def next(self) -> Event | Finished:
        """The next event. Raises StopIteration at the end, whatever the task raises, and ProcessLostError."""
        try:
            event: Event | Finished | _End = self.connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise ProcessLostError(f"its process ended with {_ending(self._process.exitcode)}") from None
        if isinstance(event, _End):
            raise event.error or StopIteration
        return event

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join(GRACE_SECONDS)
        self._process.kill()
        self._process.join()
        self.connection.close()


_Worker = _Here | _Fork


@dataclass(frozen=True)
class _End:
    """What a fork sends at the end of a batch."""

    error: Exception | None = None


def _with_news(busy: Sequence[_Worker]) -> Sequence[_Worker]:
    """Those that have another event; waits until there is one."""
    forks = [worker for worker in busy if isinstance(worker, _Fork)]
    if not forks:
        return list(busy)
    ready = wait([fork.connection for fork in forks])
    return [fork for fork in forks if fork.connection in ready]


def _handle_next(worker: _Worker, sweep: Sweep) -> Sequence[CellBatch] | None:
    """Handle a worker's next event; at the end of its batch, returns the batches to run in its place."""
    try:
        event = worker.next()
    except StopIteration:
        return []
    except OutOfMemoryError as error:
        return sweep.out_of_memory(worker.batch, error)
    except ProcessLostError as error:
        return sweep.lost(worker.batch, error)
    except DiskFullError:
        raise  # the disk would be full for the other cells too
    except Exception as error:
        sweep.failed(worker.batch, error)
        return []
    # Not in the `try`: if MLflow or the store can't be reached, the cell has not failed.
    sweep.handle(worker.batch, event)
    return None


def _compute(connection: Connection, driver: psutil.Process, config: ExecutorConfig, gpu: bool) -> None:
    """Send the events of the batches that come, in a fork of `driver` that ends with it."""
    with contextlib.suppress(KeyboardInterrupt, EOFError, ConnectionError), ends_with([driver]):
        while True:
            batch, states = connection.recv()
            try:
                for event in _events(batch, states, config, gpu):
                    connection.send(event)
            except Exception as error:
                connection.send(_End(_portable(error)))
            else:
                connection.send(_End())


def _events(
    batch: CellBatch, states: Sequence[bytes | None], config: ExecutorConfig, gpu: bool
) -> Iterator[Event | Finished]:
    return execute(batch, [cell.inputs for cell in batch.cells], states, config, gpu)


def _portable(error: Exception) -> Exception:
    """The error as another process can read it, with the traceback, which pickling drops, as a note."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(trace)
    error.add_note(f"In the cell's process:\n{trace}")
    return error


def _ending(status: int | None) -> str:
    return signal.Signals(-status).name if status and status < 0 else f"status {status}"
