"""Runtimes in separate processes, so that one that crashes, hangs or miscompiles doesn't affect others."""

import json
import os
import signal
import socket
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

from singleshot.export import worker
from singleshot.export.runtimes import interpreter
from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Precision, load_arrays, save_arrays

WORKER = worker.__name__
"""Module that runs in the process. It is imported here, so that an edit there changes a cell's digest."""
ROOT = Path(__file__).parents[2]
"""Directory of the package `singleshot`, which is not installed."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_THREAD_LIMIT")
"""Settings of the caller that would limit a runtime's threads, whose number is given with each network."""
KILLED_WAIT_S = 10
STATUS_BYTES = 16
"""Longest message with an exit status."""


class WorkerFailed(Exception):  # noqa: N818 (an outcome that the table reports)
    """A runtime crashed, hung or raised; the message is the reason, in one line."""


@dataclass(frozen=True)
class Description:
    """A worker's description of its runtime."""

    unavailable: str | None
    """Reason why the runtime can't run here; None if it can."""
    version: str
    device: str


@dataclass(frozen=True)
class PreparedReport:
    """The outputs of a network that one runtime has compiled, and the times taken."""

    outputs: Arrays
    """Output arrays (batches, batch, …) by name."""
    precision: Precision
    compile_s: float
    first_call_s: float


@dataclass(frozen=True)
class Samples:
    """Times and memory of one turn of calls."""

    wall_s: Sequence[float]
    cpu_s: Sequence[float]
    """Processor time of each call, of all threads of the process."""
    peak_memory_bytes: int | None
    """Peak of the process since the network was prepared, with the pages of libraries that it has used since
    its fork; None if it is unknown."""

    @property
    def cpu_per_wall(self) -> float:
        """Average number of cores at work."""
        return sum(self.cpu_s) / sum(self.wall_s)


class _Template:
    """A process that has imported a runtime, and whose forks are workers, one after another.

    Most imports take one to three seconds, which would otherwise be spent again for each network.
    """

    def __init__(self, runtime: str) -> None:
        python = interpreter(runtime)
        if python is None:
            raise WorkerFailed("its environment isn't built; run `make compilers`")
        self.fork_status: int | None = None
        """Exit status of the fork, or minus the signal that killed it; None while it lives."""
        self._written_before = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (it stays open)
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [str(python), "-m", WORKER, runtime, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=_environment(),
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether the process can fork."""
        return self._process.poll() is None

    def fork(self, files: str) -> Connection:
        """Fork a worker, with the directory `files` for its own; returns the other end of its connection."""
        self.fork_status = None
        self._written_before = os.fstat(self._log.fileno()).st_size
        ours, theirs = Pipe()
        with theirs:
            socket.send_fds(self._socket, [files.encode()], [theirs.fileno()])
        return ours

    def end_fork(self, patience_s: float = 0) -> int:
        """Kill the fork and all processes that it started, unless it ends by itself within `patience_s`.

        Returns:
            The fork's exit status; the template's if that has ended as well.
        """
        if self.fork_status is None:
            self._socket.settimeout(KILLED_WAIT_S)
            try:
                if not wait([self._socket], patience_s):
                    self._socket.sendall(b"\n")
                status = self._socket.recv(STATUS_BYTES)
            except OSError:
                status = b""
            self.fork_status = int(status) if status else self.kill()
        return self.fork_status

    def kill(self) -> int:
        """Kill the process, its fork, and all processes that they started; returns its status."""
        self._socket.close()  # which ends it and its fork, unless it is still importing
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILLED_WAIT_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.fork_status = self._process.wait()
        return self.fork_status

    def last_words(self) -> str:
        """The last line that the fork has written; empty if there is none."""
        size = os.fstat(self._log.fileno()).st_size - self._written_before
        written = os.pread(self._log.fileno(), size, self._written_before).decode(errors="replace")
        return next((line.strip() for line in reversed(written.split("\n")) if line.strip()), "")


_idle: dict[str, list[_Template]] = defaultdict(list)
"""Templates without a fork, by runtime. They end with this process."""


def _template(runtime: str) -> _Template:
    """An idle template of the runtime, or a new one, which imports it in the background."""
    while _idle[runtime]:
        template = _idle[runtime].pop()
        if template.alive:
            return template
    return _Template(runtime)


class Worker:
    """A process with one runtime; a context manager that kills the process at the end, whatever it is doing.

    The process is a fork of a :class:`_Template`. The first request waits until the runtime is imported. The
    process writes nothing to this process's output. If a request isn't answered within `time_limit_s`, the
    process and all processes that it started are killed. After a :class:`WorkerFailed`, the worker can still
    be used if it is `alive`, because its runtime has only raised an error.

    Raises:
        WorkerFailed: the environment of the runtime isn't built.
    """

    def __init__(self, runtime: str, time_limit_s: float) -> None:
        self.runtime, self.time_limit_s = runtime, time_limit_s
        self._template = _template(runtime)
        self._files = tempfile.TemporaryDirectory(prefix="worker-")
        self._connection = self._template.fork(self._files.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and remove its files. Its template waits for the next worker."""
        self._connection.close()
        self._template.end_fork()
        _idle[self.runtime].append(self._template)
        self._files.cleanup()

    @property
    def alive(self) -> bool:
        """Whether the process can take another request."""
        return self._template.fork_status is None

    def describe(self) -> Description:
        """Describe the runtime, once it is imported."""
        return Description(**self._ask("describe"))

    def prepare(self, model: ModelFiles, inputs: Arrays, threads: int) -> PreparedReport:
        """Compile the network for the shapes of `inputs`, (batches, batch, …) by name, and run all batches.

        The network replaces the one prepared before.
        """
        given, answers = Path(self._files.name, "inputs.npz"), Path(self._files.name, "outputs.npz")
        save_arrays(given, inputs)
        answer = self._ask(
            "prepare",
            model={"onnx": str(model.onnx), "source": str(model.source), "form": model.form},
            inputs=str(given),
            outputs=str(answers),
            threads=threads,
        )
        outputs = load_arrays(answers)
        return PreparedReport(outputs, answer["precision"], answer["compile_s"], answer["first_call_s"])

    def measure(self, calls: int) -> Samples:
        """Time `calls` calls of the prepared network, on each batch of its inputs in turn."""
        return Samples(**self._ask("measure", calls=calls))

    def _ask(self, action: str, **request: Any) -> dict[str, Any]:
        try:
            self._connection.send_bytes(json.dumps({"do": action, **request}).encode())
            if not self._connection.poll(self.time_limit_s):
                self._template.kill()
                raise WorkerFailed(f"no answer within {self.time_limit_s:g} s")
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerFailed(self._how_it_ended()) from error
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer

    def _how_it_ended(self) -> str:
        status = self._template.end_fork(KILLED_WAIT_S)
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        last = self._template.last_words()
        return f"{how}: {last[:300]}" if last else how


def _environment() -> dict[str, str]:
    """This process's environment variables, with `singleshot` importable."""
    inherited = {name: value for name, value in os.environ.items() if name not in THREADS}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return inherited | {"PYTHONPATH": path}
