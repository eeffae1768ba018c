"""Runtimes in separate processes, so that one that crashes, hangs or miscompiles doesn't affect others."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Self

from tasks.deployment import worker
from tasks.deployment.runtimes import interpreter
from tasks.deployment.runtimes.protocol import Arrays, ModelFiles, Precision, load_arrays, save_arrays

WORKER = worker.__name__
"""Module that runs in the process. It is imported here, so that an edit there changes a cell's digest."""
ROOT = Path(__file__).parents[2]
"""Directory of the package `tasks`, which is not installed."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_THREAD_LIMIT")
"""Settings of the caller that would limit a runtime's threads, whose number is given with each network."""
KILLED_WAIT_S = 10


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
    """Peak of the process since the network was prepared, libraries included; None if it is unknown."""

    @property
    def cpu_per_wall(self) -> float:
        """Average number of cores at work."""
        return sum(self.cpu_s) / sum(self.wall_s)


class Worker:
    """A process with one runtime; a context manager that kills the process at the end, whatever it is doing.

    The process starts at once and imports its runtime in the background; the first request waits for the
    import. It writes nothing to this process's output. If a request isn't answered within `time_limit_s`, the
    process and all processes that it started are killed. After a :class:`WorkerFailed`, the worker can still
    be used if it is `alive`, because its runtime has only raised an error.

    Raises:
        WorkerFailed: the environment of the runtime isn't built.
    """

    def __init__(self, runtime: str, time_limit_s: float) -> None:
        self.runtime, self.time_limit_s = runtime, time_limit_s
        python = interpreter(runtime)
        if python is None:
            raise WorkerFailed("its environment isn't built; run `make compilers`")
        self._files = tempfile.TemporaryDirectory(prefix="worker-")
        self._log = Path(self._files.name, "log")
        self._connection, theirs = Pipe()
        with self._log.open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [str(python), "-m", WORKER, runtime, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(Path(self._files.name)),
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and remove its files."""
        self._kill()
        self._connection.close()
        self._files.cleanup()

    @property
    def alive(self) -> bool:
        """Whether the process can take another request."""
        return self._process.poll() is None

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
                self._kill()
                raise WorkerFailed(f"no answer within {self.time_limit_s:g} s")
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerFailed(self._how_it_ended()) from error
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(KILLED_WAIT_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return "closed its connection"
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), None)
        return f"{how}: {last[:300]}" if last else how

    def _kill(self) -> None:
        """Kill the process and all processes that it started, e.g. compilers."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait(KILLED_WAIT_S)


def _environment(files: Path) -> dict[str, str]:
    """This process's environment variables, with `tasks` importable."""
    inherited = {name: value for name, value in os.environ.items() if name not in THREADS}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Kernels are compiled anew in every process, or the compile time would depend on earlier runs. PyTorch's
    # own precompiled headers (7 s), which it keeps elsewhere, are shared.
    return inherited | {"PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(files / "inductor")}
