"""Task: run one network on all runtimes: whether their outputs match PyTorch's, and how fast they are."""

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Literal, Self

import joblib
import numpy as np
import torch
from annotated_types import Ge, Gt, MinLen
from numpy.typing import NDArray

from singleshot.export.isolation import Worker, WorkerFailed
from singleshot.export.model_files import open_network
from singleshot.export.network import Network
from singleshot.export.onnx_model import read_card, unbatched_shapes
from singleshot.export.parity import Reference, compare, random_inputs, reference
from singleshot.export.runtimes import NOT_INSTALLED, SLOW_TO_PREPARE, THREADS_ARE_FINAL, RuntimeAt
from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Precision
from singleshot.export.timing import Timing, take_turns
from singleshot.random_streams import stream
from singleshot.rl.actions import ActionBounds
from singleshot.rl.environments import Environment, make_environment
from tasks.job import Event, Job, Metrics, Progress, per_job
from tasks.tables import write_csv

Status = Literal["ok", "failed", "unavailable"]


@dataclass(frozen=True)
class InputSize:
    """Size of one call's inputs."""

    batch: Annotated[int, Ge(1)]
    size_px: Annotated[int, Ge(1)] | None = None
    """Side of square pictures in pixels, for networks that take any size."""


@dataclass(frozen=True)
class BenchmarkParams:
    """Settings of the measurements, besides the network."""

    runtimes: Annotated[tuple[RuntimeAt, ...], MinLen(1)]
    threads: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)]
    """Numbers of threads; 0 means all cores."""
    sizes: Annotated[tuple[InputSize, ...], MinLen(1)]
    seconds: Annotated[float, Gt(0)]
    """Time for each runtime at each size in seconds, without warm-up and compilation; at least two calls."""
    time_limit_s: Annotated[float, Gt(0)]
    """Timeout for an answer of a runtime, e.g. for compiling one network for one size, in seconds."""
    rollout_steps: Annotated[int, Ge(1)]
    """Number of states that a policy is compared on, from episodes that it plays itself."""
    environment: Environment | None = None
    """Where a policy acts; None for other networks."""


@dataclass(frozen=True, kw_only=True)
class TimingRow:
    """One network on one runtime at one size: a row of timings.csv. Unknown values are empty."""

    model: str
    """The network's cell, e.g. `HalfCheetah/bcq/snip-0.95/seed-0`."""
    runtime: str
    device: str = ""
    """`cpu`, or the GPU's name."""
    threads: int
    batch: int
    size_px: int | None
    p50_ms: float | None = None
    """Median wall-clock time of a call in milliseconds, from arrays to arrays, in steady state."""
    p90_ms: float | None = None
    """90th percentile of the same."""
    p99_ms: float | None = None
    """99th percentile of the same."""
    max_abs_error: float | None = None
    """Largest absolute difference from PyTorch in float64."""
    status: Status = "ok"
    reason: str = ""
    precision: Precision | Literal[""] = ""
    """Precision that the runtime actually computes in."""
    version: str
    form: str
    """`dense`, `masked` or `compacted`."""
    max_rel_error: float | None = None
    tolerance: float | None = None
    """The largest `max_abs_error` that is accepted."""
    same_choices: float | None = None
    """For BCQ: fraction of a rollout's states in which it picks the same candidate as PyTorch in float64."""
    cpu_p50_ms: float | None = None
    """Median processor time of a call, of all threads, in milliseconds. If it is less than `p50_ms` on one
    thread, something else ran on that core."""
    compile_s: float | None = None
    """Seconds to compile the network, while other runtimes compile on the other cores."""
    first_call_ms: float | None = None
    """Time of the first call in milliseconds, while other runtimes compile on the other cores."""
    peak_memory_mb: float | None = None
    """Peak memory of the runtime's process in MB, with the parts of its libraries that the network needs,
    without GPU memory."""
    file_bytes: int
    """Bytes of the ONNX file."""
    calls: int | None = None
    """Number of calls that the percentiles are taken over."""
    disturbed_turns: int | None = None
    """Number of turns that were repeated, because something else on the machine used the processor."""


@dataclass(frozen=True)
class Outcome:
    """Result of one runtime at one size."""

    row: TimingRow
    outputs: Arrays | None = None
    """The network's outputs (examples, …) by name; None if the runtime gave none."""


@per_job
def benchmark(job: Job) -> Iterator[Event]:
    """Compare and time a job's network (:class:`BenchmarkParams`). Nothing else should run meanwhile.

    Inputs: `onnx`, a graph this project exported, and `source`, the file it was exported from. The output
    gets `timings.csv` (:class:`TimingRow`). Metrics have the batch, or the pictures' side, as their step.

    Every runtime has a process of its own. As many runtimes compile at once as there are cores, and only one
    computes at a time. The outputs of each runtime are compared with PyTorch's in float64, and only runtimes
    with correct outputs are timed. A policy is compared on states of its own episodes, a network for pictures
    on random pictures. If a runtime crashes, hangs or raises an error, only its own rows fail.

    Raises:
        UserError: an input is missing, damaged, or of another kind.
    """
    form = read_card(job.inputs["onnx"]).form
    files = ModelFiles(job.inputs["onnx"], job.inputs["source"], form)
    yield from measure(job.params, files, job.output)


def measure(
    params: BenchmarkParams, files: ModelFiles, output: Path, inputs: Arrays | None = None
) -> Generator[Event, None, Sequence[Outcome]]:
    """Compare and time one network, and write `timings.csv` to `output`.

    `inputs`, (examples, …) by name, replace those that the network is otherwise compared on.

    Returns:
        The outcomes of all runtimes at the last size, on the last number of threads.
    """
    cases = list(product(dict.fromkeys(map(_cores, params.threads)), params.sizes))
    rows: list[TimingRow] = []
    outcomes: Sequence[Outcome] = ()
    with _Bench(params, files, inputs) as bench:
        for n, (threads, size) in enumerate(cases, start=1):
            outcomes = bench.measure(threads, size)
            case = [outcome.row for outcome in outcomes]
            rows += case
            if timed := {f"{row.runtime}_p50_ms_threads_{threads}": row.p50_ms for row in case if row.p50_ms}:
                yield Metrics(size.size_px or size.batch, timed)
            yield Progress(n / len(cases))
    write_csv(output / "timings.csv", TimingRow, rows)
    return outcomes


@dataclass(frozen=True)
class _Examples:
    """Inputs and the outputs expected for them."""

    inputs: Arrays
    """(examples, …)"""
    reference: Reference

    def batches(self, size: int) -> Arrays:
        """All inputs as (batches, size, …). The first ones are repeated to fill the last batch."""
        examples = len(next(iter(self.inputs.values())))
        batches = -(-examples // size)
        order = np.arange(batches * size).reshape(batches, size) % examples
        return {name: array[order] for name, array in self.inputs.items()}

    def unbatched(self, outputs: Arrays) -> Arrays:
        """Outputs (batches, size, …) for :meth:`batches`, as (examples, …)."""
        examples = len(next(iter(self.inputs.values())))
        return {name: array.reshape(-1, *array.shape[2:])[:examples] for name, array in outputs.items()}


class _Bench:
    """A network and the processes of its runtimes; a context manager that ends the processes."""

    def __init__(self, params: BenchmarkParams, files: ModelFiles, inputs: Arrays | None) -> None:
        self.params = params
        self.files = files
        self.inputs = inputs
        self.card = read_card(files.onnx)
        self.network = open_network(files.source, self.card.form)
        self._examples: dict[InputSize | None, _Examples] = {}
        self._workers: dict[str, Worker] = {}
        self._threads: dict[str, int] = {}
        self._pool = ThreadPoolExecutor(_cores(0))
        """Threads that last as long as their workers: if a thread ends, the system kills its workers."""

    def __enter__(self) -> Self:
        installed = [runtime.name for runtime in self.params.runtimes if runtime.version is not None]
        # All runtimes import at once, which takes seconds, and finish before anything is timed.
        for name in installed:
            self._workers[name] = Worker(name, self.params.time_limit_s)
        for name in installed:
            with suppress(WorkerFailed):  # it fails again when its rows are made
                self._workers[name].describe()
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers.values():
            worker.close()
        self._pool.shutdown()

    def measure(self, threads: int, size: InputSize) -> list[Outcome]:
        """The outcome of each runtime."""
        examples = self._examples_of(size)
        # Compilers run in parallel, each in its own process, and finish before anything is timed.
        prepare = partial(self._prepare, threads=threads, size=size, examples=examples)
        slow_first = sorted(self.params.runtimes, key=lambda runtime: runtime.name not in SLOW_TO_PREPARE)
        prepared = {outcome.row.runtime: outcome for outcome in self._pool.map(prepare, slow_first)}
        outcomes = {runtime.name: prepared[runtime.name] for runtime in self.params.runtimes}
        right = {name: self._workers[name] for name, each in outcomes.items() if each.row.status == "ok"}
        for name, timing in take_turns(right, self.params.seconds).items():
            outcomes[name] = replace(outcomes[name], row=_with_timing(outcomes[name].row, timing))
        return list(outcomes.values())

    def _prepare(self, runtime: RuntimeAt, threads: int, size: InputSize, examples: _Examples) -> Outcome:
        """The outcome as known before the timing; its status is `ok` if the runtime is to be timed."""
        row = self._empty_row(runtime, threads, size)
        if runtime.version is None:
            return Outcome(replace(row, status="unavailable", reason=NOT_INSTALLED))
        try:
            worker = self._worker(runtime.name, threads)
            description = worker.describe()
            if description.unavailable:
                return Outcome(replace(row, status="unavailable", reason=description.unavailable))
            row = replace(row, device=description.device, version=description.version)
            report = worker.prepare(self.files, examples.batches(size.batch), threads)
        except WorkerFailed as failure:
            return Outcome(replace(row, status="failed", reason=str(failure)))
        outputs = examples.unbatched(report.outputs)
        parity = compare(outputs, examples.reference, report.precision)
        row = replace(
            row,
            status="ok" if parity.accepted else "failed",
            reason=parity.reason,
            max_abs_error=_finite(parity.max_abs_error),
            max_rel_error=_finite(parity.max_rel_error),
            tolerance=parity.tolerance,
            same_choices=parity.same_choices,
            precision=report.precision,
            compile_s=report.compile_s,
            first_call_ms=1e3 * report.first_call_s,
        )
        return Outcome(row, outputs)

    def _worker(self, name: str, threads: int) -> Worker:
        """The runtime's process, or a new one if that has ended or can't change its number of threads."""
        final = name in THREADS_ARE_FINAL and self._threads.get(name, threads) != threads
        if final or not self._workers[name].alive:
            self._workers[name].close()
            self._workers[name] = Worker(name, self.params.time_limit_s)
        self._threads[name] = threads
        return self._workers[name]

    def _empty_row(self, runtime: RuntimeAt, threads: int, size: InputSize) -> TimingRow:
        return TimingRow(
            model=self.card.cell,
            runtime=runtime.name,
            threads=threads,
            batch=size.batch,
            size_px=size.size_px,
            version=runtime.version or "",
            form=self.card.form,
            file_bytes=self.files.onnx.stat().st_size,
        )

    def _examples_of(self, size: InputSize) -> _Examples:
        """The same for all numbers of threads, and mostly for all batch sizes, since float64 is slow."""
        key = None if self.inputs or self.network.kind == "policy" else size
        if key not in self._examples:
            inputs = self.inputs or (
                _random(self.network, key) if key else _visited(self.network, self.params)
            )
            self._examples[key] = _Examples(inputs, reference(self.network, inputs))
        return self._examples[key]


def _random(network: Network, size: InputSize) -> dict[str, NDArray[np.float32]]:
    sizes = {"batch": size.batch}
    if size.size_px is not None:
        sizes |= {"height": size.size_px, "width": size.size_px}
    return random_inputs(network.inputs, sizes, seed=0)


@torch.inference_mode()
def _visited(network: Network, params: BenchmarkParams) -> dict[str, NDArray[np.float32]]:
    """The inputs of a policy in its first steps: states and latents, (steps, …).

    A policy without an environment gets random ones.
    """
    details = network.details
    if not (params.environment and params.environment.id):
        sizes = {"samples": 1, **details, "batch": params.rollout_steps}
        return random_inputs(network.inputs, sizes, seed=0)
    environment = make_environment(params.environment)
    bounds = ActionBounds(**details["bounds"]) if details["bounds"] else None
    generator = stream("benchmark", 0)
    _, *shapes = unbatched_shapes(network.inputs, network.details).values()
    observation, _ = environment.reset(seed=0)
    steps = []
    for _ in range(params.rollout_steps):
        state = torch.as_tensor(observation, dtype=torch.float32)[None]
        given = (state, *(torch.randn(1, *shape, generator=generator) for shape in shapes))
        steps.append(given)
        outputs = network.module(*given)
        action = outputs[0] if isinstance(outputs, tuple) else outputs
        played = action[0].numpy()
        played = bounds.to_unit(played) if bounds else played
        observation, _, terminated, truncated, _ = environment.step(played)
        if terminated or truncated:
            observation, _ = environment.reset()
    environment.close()
    return {
        each.name: torch.cat(values).numpy()
        for each, values in zip(network.inputs, zip(*steps, strict=True), strict=True)
    }


def _with_timing(row: TimingRow, outcome: Timing | WorkerFailed) -> TimingRow:
    if isinstance(outcome, WorkerFailed):
        return replace(row, status="failed", reason=str(outcome))
    return replace(row, **asdict(outcome))


def _finite(error: float) -> float | None:
    """The error, or None if the outputs can't be compared at all, as the row's reason then says."""
    return error if np.isfinite(error) else None


def _cores(threads: int) -> int:
    return threads or joblib.cpu_count()
