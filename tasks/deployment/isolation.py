"""A runtime in a process of its own, so that one that crashes, hangs or miscompiles costs nothing else."""

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
"""What `python -m` runs in the process. Imported here, so that an edit there changes a cell's digest."""
ROOT = Path(__file__).parents[2]
"""Where `tasks` is, which is not installed."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_THREAD_LIMIT")
"""Settings of the caller that would bind a runtime, whose threads are given with each network."""
KILLED_WAIT_S = 10


class WorkerFailed(Exception):  # noqa: N818 (an outcome that the table reports)
    """A runtime crashed, hung or raised; the message is the reason, in one line."""


@dataclass(frozen=True)
class Description:
    """What a worker says of its runtime."""

    unavailable: str | None
    """Why it can't run here."""
    version: str
    device: str


@dataclass(frozen=True)
class PreparedReport:
    """A network as one runtime compiled it."""

    outputs: Arrays
    """(batches, batch, …) by name."""
    precision: Precision
    compile_s: float
    first_call_s: float


@dataclass(frozen=True)
class Samples:
    """What one turn of calls took."""

    wall_s: Sequence[float]
    cpu_s: Sequence[float]
    """Processor time of each call, of all threads of the process."""
    peak_memory_bytes: int | None
    """Of the process since the network was prepared, libraries included; None where it can't be known."""

    @property
    def cpu_per_wall(self) -> float:
        """Cores that worked, on average."""
        return sum(self.cpu_s) / sum(self.wall_s)


class Worker:
    """A process with one runtime. A context manager; the process is gone at its end, whatever it is doing.

    It starts at once and imports its runtime in the background; the first request waits for that. It writes
    nothing to this process's output. A request that isn't answered within `time_limit_s` kills it and all
    processes it started. After a :class:`WorkerFailed` it may be used on where it is
    still `alive`: its runtime only raised.

    Raises:
        WorkerFailed: the environment that the runtime lives in isn't built.
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
        """Whether it can take another request."""
        return self._process.poll() is None

    def describe(self) -> Description:
        """The runtime, once it is imported."""
        return Description(**self._ask("describe"))

    def prepare(self, model: ModelFiles, inputs: Arrays, threads: int) -> PreparedReport:
        """Compile the network for the shapes of `inputs`, (batches, batch, …) by name, and run all of these.

        It takes the place of the network prepared before.
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
        """Time `calls` calls of the prepared network, the batches of its inputs by turns."""
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
        """The process and all it started, compilers for instance."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait(KILLED_WAIT_S)


def _environment(files: Path) -> dict[str, str]:
    """This process's, with `tasks` importable."""
    inherited = {name: value for name, value in os.environ.items() if name not in THREADS}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Kernels are compiled anew in every process, else an earlier run would show in the time to compile. What
    # PyTorch keeps elsewhere, its own headers compiled (7 s), is shared.
    return inherited | {"PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(files / "inductor")}
