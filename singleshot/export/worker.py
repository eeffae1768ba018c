"""The processes of one runtime: `python -m singleshot.export.worker NAME FD`.

This process imports the runtime and forks workers. A message over the socket FD, with the path of a directory
and another socket, asks for a worker; any other message ends it. The answer is the exit status of the worker.

A worker answers the requests of :class:`singleshot.export.isolation.Worker`: JSON over its socket, and arrays
in .npz files. Both import only NumPy and the runtime, since a runtime's environment may lack everything else.
"""

import ctypes
import gc
import json
import multiprocessing
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from singleshot.errors import in_a_line
from singleshot.export.runtimes import open_runtime
from singleshot.export.runtimes.protocol import (
    Arrays,
    ModelFiles,
    Prepared,
    Runtime,
    load_arrays,
    save_arrays,
)

PATH_BYTES = 4096
"""Longest path of a directory."""
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
MESSAGE = 200
"""Longest answer for an exception, in characters. The first line of OpenVINO's names only a source file."""


def main(open_runtime: Callable[[str], Runtime] = open_runtime) -> None:
    """Import the runtime, then fork workers, one after another, until the other end of the socket closes."""
    name, descriptor = sys.argv[1], int(sys.argv[2])
    with socket.socket(fileno=descriptor) as requests:
        requests.set_inheritable(False)  # else a compiler that an import starts would keep the socket open
        # Imports set off garbage collections, each of which goes through all existing objects. They take 0.5
        # of the 2.4 seconds (CPU) in which Inductor is imported.
        gc.disable()
        runtime = open_runtime(name)
        gc.freeze()
        gc.enable()
        while True:
            files, connections, _, _ = socket.recv_fds(requests, PATH_BYTES, 1)
            if not files:
                return
            if connections:  # otherwise, a worker was to end that had ended already
                status = _fork(runtime, files.decode().strip(), connections[0], requests)
                with suppress(BrokenPipeError):
                    requests.sendall(str(status).encode())


def _fork(runtime: Runtime, files: str, descriptor: int, requests: socket.socket) -> int:
    """Fork a worker, and wait until it has ended or there is a message, which means that it has to end.

    Returns:
        Its exit status, or minus the signal that killed it.
    """
    with Connection(descriptor) as connection:
        work = partial(_work, runtime, files, connection, requests)
        fork = multiprocessing.get_context("fork").Process(target=work)
        fork.start()
    wait([fork.sentinel, requests])
    with suppress(ProcessLookupError):
        os.killpg(fork.pid, signal.SIGKILL)  # type: ignore[arg-type]
    fork.kill()  # if it was not yet the leader of a group
    fork.join()
    return fork.exitcode  # type: ignore[return-value]


def _work(runtime: Runtime, files: str, connection: Connection, requests: socket.socket) -> None:
    """Answer requests until the other end of the connection closes."""
    requests.close()
    os.setsid()
    _die_with_parent()
    # Kernels are compiled anew for every worker, or the compile time would depend on earlier runs. PyTorch's
    # own precompiled headers (7 s), which it keeps elsewhere, are shared.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{files}/inductor"
    session = Session(runtime)
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(json.dumps(session.answer(request)).encode())


class Session:
    """A runtime and the network last prepared for it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.prepared: Prepared | None = None
        self.inputs: list[Arrays] = []
        self.peak_was_reset = False

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request with the result of its method, or with `error` and the exception in one line."""
        actions: dict[str, Callable[..., dict[str, Any]]] = {
            "describe": self.describe,
            "prepare": self.prepare,
            "measure": self.measure,
        }
        action = actions[request.pop("do")]
        try:
            return action(**request)
        except Exception as error:
            return {"error": textwrap.shorten(in_a_line(error), MESSAGE, placeholder=" …")}

    def describe(self) -> dict[str, Any]:
        """Describe the runtime, and say whether it can run here."""
        reason = self.runtime.unavailable()
        if reason:
            return {"unavailable": reason, "version": "", "device": ""}
        return {"unavailable": None, "version": self.runtime.version(), "device": self.runtime.device()}

    def prepare(
        self, model: dict[str, str], inputs: str, outputs: str, threads: int
    ) -> dict[str, str | float]:
        """Compile a network, and write its outputs for every batch of `inputs`; arrays are (batches, …)."""
        self.prepared = None
        _free_memory()
        self.peak_was_reset = _reset_peak_memory()
        files = ModelFiles(Path(model["onnx"]), Path(model["source"]), model["form"])
        self.inputs = _split(Path(inputs))
        shapes = {name: array.shape for name, array in self.inputs[0].items()}
        start = time.perf_counter()
        self.prepared = self.runtime.prepare(files, shapes, threads)
        compiled = time.perf_counter()
        first = self.prepared.run(self.inputs[0])
        called = time.perf_counter()
        answers = [first, *map(self.prepared.run, self.inputs[1:])]
        save_arrays(Path(outputs), {name: np.stack([answer[name] for answer in answers]) for name in first})
        return {
            "precision": self.prepared.precision,
            "compile_s": compiled - start,
            "first_call_s": called - compiled,
        }

    def measure(self, calls: int) -> dict[str, list[float] | float | None]:
        """Seconds of each of `calls` calls, on each batch of inputs in turn.

        Another runtime ran before, so caches are cold: an additional first call isn't counted. There is none
        if `calls` is 1, because a call then takes long.
        """
        assert self.prepared is not None
        run, batches = self.prepared.run, self.inputs
        if calls > 1:
            run(batches[-1])
        wall, cpu = time_calls([partial(run, batches[i % len(batches)]) for i in range(calls)])
        peak = _peak_memory() if self.peak_was_reset else None
        return {"wall_s": wall, "cpu_s": cpu, "peak_memory_bytes": peak}


def time_calls(calls: Sequence[Callable[[], object]]) -> tuple[list[float], list[float]]:
    """Elapsed time and processor time of each call, in seconds."""
    wall, cpu = [], []
    for call in calls:
        # Reading processor time is a system call, so it stays outside the wall-clock time.
        cpu_start = time.process_time()
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        cpu.append(time.process_time() - cpu_start)
        wall.append(end - start)
    return wall, cpu


def _split(path: Path) -> list[Arrays]:
    """The batches of a file, each in memory of its own."""
    stacked = load_arrays(path)
    batches = len(next(iter(stacked.values())))
    return [{name: array[i].copy() for name, array in stacked.items()} for i in range(batches)]


def _die_with_parent() -> None:
    """End this process with its parent, even during a call, when the end of the socket would go unnoticed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_memory() -> None:
    """Give the memory of the network before this one back to the system, or it would count for this one."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak_memory() -> bool:
    """Reset the peak of memory (proc(5), /proc/pid/clear_refs); False if the system doesn't support that."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True


def _peak_memory() -> int:
    """Peak of this process's memory, in bytes."""
    status = Path("/proc/self/status").read_text("utf-8").splitlines()
    (peak,) = (line for line in status if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


if __name__ == "__main__":
    main()
