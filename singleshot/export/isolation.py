"""Runtimes in separate processes, so that one that crashes, hangs or miscompiles doesn't affect others.

The functions at the end are what these processes run. They import only NumPy and the runtime, since a
runtime's environment may lack everything else.
"""

import ctypes
import functools
import gc
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singleshot.export.runtimes import RUNTIMES, interpreter
from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Precision, Prepared, Runtime
from singleshot.export.timing import Samples, time_calls
from singleshot.io.own_process import OwnProcess

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_THREAD_LIMIT")
"""Settings of the caller that would limit a runtime's threads, whose number is given with each network."""


@dataclass(frozen=True)
class Description:
    """A worker's description of its runtime."""

    unavailable: str | None
    """Reason why the runtime can't run here; None if it can."""
    version: str = ""
    device: str = ""


@dataclass(frozen=True)
class Report:
    """The outputs of a network that one runtime has compiled, and the times taken."""

    outputs: Arrays
    """Output arrays (batches, batch, …) by name."""
    precision: Precision
    compile_s: float
    first_call_ms: float


class Worker:
    """A process with one runtime, on one number of threads if that can't be changed later.

    The process is kept for the next worker, as most runtimes take one to three seconds to be imported. After
    a crash, or a request that isn't answered within `time_limit_s`, the next request starts a new one.

    Raises:
        ProcessFailed: from requests: the runtime crashed, hung or raised an error.
    """

    def __init__(self, runtime: str, threads: int, time_limit_s: float) -> None:
        declared = RUNTIMES[runtime]
        self._runtime, self._threads = (declared.module, runtime), threads
        self._process = _process(runtime, threads if declared.threads_are_final else None)
        self._ask: Callable[..., Any] = partial(self._process.call, time_limit_s)

    def describe(self) -> Description:
        """Describe the runtime, once it is imported."""
        return self._ask(describe, *self._runtime)

    def prepare(self, model: ModelFiles, inputs: Arrays, scratch: Path) -> Report:
        """Compile the network for the shapes of `inputs`, (batches, batch, …) by name, and run all batches.

        The network replaces the one prepared before. Its compiler may leave files in `scratch`.
        """
        return self._ask(prepare, *self._runtime, model, inputs, self._threads, scratch)

    def measure(self, calls: int) -> Samples:
        """Time `calls` calls of the prepared network, on each batch of its inputs in turn."""
        return self._ask(measure, calls)


@functools.cache
def _process(runtime: str, threads: int | None) -> OwnProcess:  # noqa: ARG001 (one for each)
    python = interpreter(runtime)
    assert python is not None  # nobody asks what isn't installed
    return OwnProcess(python, {name: value for name, value in os.environ.items() if name not in THREADS})


_network: tuple[Prepared, Sequence[Arrays], bool] | None = None
"""The network that this process has prepared, its inputs' batches, and whether its memory is measured."""


@functools.cache
def _open(module: str, name: str) -> Runtime:
    adapter: type[Runtime] = importlib.import_module(module).ADAPTER
    return adapter(name)


def describe(module: str, name: str) -> Description:
    """Describe the runtime of an adapter's module, and say whether it can run here."""
    runtime = _open(module, name)
    if reason := runtime.unavailable():
        return Description(reason)
    return Description(None, runtime.version(), runtime.device())


def prepare(module: str, name: str, model: ModelFiles, inputs: Arrays, threads: int, scratch: Path) -> Report:
    """Compile a network in this process, and return its outputs for every batch of `inputs`."""
    global _network
    _network = None
    # Kernels are compiled anew, or the compile time would depend on earlier runs. PyTorch's own precompiled
    # headers (7 s), which it keeps elsewhere, are shared.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(scratch / name)
    gc.collect()  # gives the memory of the network before this one back, or it would count for this one
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    peak_was_reset = _reset_peak_memory()
    count = len(next(iter(inputs.values())))
    batches = [{name: array[i].copy() for name, array in inputs.items()} for i in range(count)]
    shapes = {name: array.shape for name, array in batches[0].items()}
    start = time.perf_counter()
    prepared = _open(module, name).prepare(model, shapes, threads)
    compiled = time.perf_counter()
    first = prepared.run(batches[0])
    called = time.perf_counter()
    answers = [first, *map(prepared.run, batches[1:])]
    _network = prepared, batches, peak_was_reset
    outputs = {name: np.stack([answer[name] for answer in answers]) for name in first}
    return Report(outputs, prepared.precision, compiled - start, 1e3 * (called - compiled))


def measure(calls: int) -> Samples:
    """Time `calls` calls of this process's network.

    Another runtime ran before, so caches are cold: an additional first call isn't counted. There is none if
    `calls` is 1, because a call then takes long.
    """
    assert _network is not None
    prepared, batches, peak_was_reset = _network
    if calls > 1:
        prepared.run(batches[-1])
    samples = time_calls([partial(prepared.run, batches[i % len(batches)]) for i in range(calls)])
    status = Path("/proc/self/status").read_text("utf-8").splitlines() if peak_was_reset else ()
    peaks = (1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    return replace(samples, peak_memory_bytes=next(peaks, None))


def _reset_peak_memory() -> bool:
    """Reset the peak of memory (proc(5), /proc/pid/clear_refs); False if the system doesn't support that."""
    with suppress(OSError):
        return Path("/proc/self/clear_refs").write_text("5", encoding="utf-8") > 0
    return False
