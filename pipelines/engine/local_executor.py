"""Cells on this machine, as many at a time as it has cores for."""

import contextlib
import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait

import joblib
import psutil

from pipelines.engine.cells import Cell
from pipelines.engine.execution import (
    CellBatch,
    ExecutorConfig,
    Finished,
    LostError,
    OutOfMemoryError,
    batches,
    checkpoints_of,
    device_of,
    execute,
    stack_size,
)
from pipelines.engine.processes import GRACE_SECONDS, ends_with
from pipelines.engine.sweep import Sweep
from singleshot.errors import UserError
from singleshot.job import Event


class LocalExecutor:
    """Computes cells in forks of this process, which have imported what it has.

    On a GPU, and where a cell has several threads, cells run in this process, one at a time. A fork can use
    neither OpenMP's threads nor a GPU once its parent has: it hangs, or fails. So all other cells run in
    forks, also a single one: the next step of the stage may need forks.

    The forks are not those of `concurrent.futures`: its pool gives up all of them when one is killed, cannot
    be ended in the middle of a cell, and hands back results alone, no checkpoints.
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
        pending = deque(batches(cells, sweep.store, stack_size(self.config, len(cells), on_gpu)))
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
