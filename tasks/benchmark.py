"""Task: run one network on all runtimes: whether their outputs match PyTorch's, and how fast they are."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Literal

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from singleshot.export.classifier import CARDS, PREPARATIONS, Preparation, top
from singleshot.export.isolation import Worker
from singleshot.export.measurement import InputSize, Measurement
from singleshot.export.model_files import open_network
from singleshot.export.parity import Parity, Reference, compare, random_inputs, reference
from singleshot.export.runtimes import RUNTIMES
from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Precision
from singleshot.export.timing import Timing, take_turns
from singleshot.io.onnx_model import read_card, unbatched_shapes
from singleshot.io.own_process import ProcessFailed
from singleshot.io.tables import write_csv
from singleshot.io.to_onnx import Network
from singleshot.job import Event, Job, Metrics, Progress, per_job
from singleshot.random_streams import stream
from singleshot.rl.actions import ActionBounds
from singleshot.rl.environments import Environment, make_environment
from singleshot.style.datasets.photos import PhotoSet

Status = Literal["ok", "failed", "unavailable"]
ANSWERS = 5
"""Number of a classifier's answers for each picture."""
DECIMALS = 6
"""Decimals of probabilities: float32 resolves them, and threads and instruction sets don't change them."""


@dataclass(frozen=True)
class BenchmarkParams:
    """What a network is run on, and on which inputs."""

    runtimes: Mapping[str, str | None]
    """The installed version of each runtime, so that another is measured anew; None if it isn't installed."""
    sizes: tuple[InputSize, ...]
    measurement: Measurement
    environment: Environment | None = None
    """Where a policy acts; None for other networks."""
    photos: tuple[str, ...] = ()
    """Names of photos in the :class:`PhotoSet` that a classifier is asked about."""


@dataclass(frozen=True, kw_only=True)
class TimingRow:
    """One network on one runtime at one size: a row of timings.csv. Unknown values are empty."""

    model: str
    """The network's cell, e.g. `HalfCheetah/bcq/snip-0.95/seed-0`."""
    runtime: str
    device: str = ""
    """`cpu`, or the GPU's name."""
    threads: int
    size: InputSize
    timing: Timing = field(default_factory=Timing)
    parity: Parity = field(default_factory=Parity)
    """Differences from PyTorch in float64."""
    status: Status = "ok"
    reason: str = ""
    precision: Precision | Literal[""] = ""
    """Precision that the runtime actually computes in."""
    version: str
    form: str
    """`dense`, `masked` or `compacted`."""
    compile_s: float | None = None
    """Seconds to compile the network, while other runtimes compile on the other cores."""
    first_call_ms: float | None = None
    """Time of the first call in milliseconds, while other runtimes compile on the other cores."""
    file_bytes: int
    """Bytes of the ONNX file."""


@dataclass(frozen=True)
class AnswerRow:
    """One answer of one runtime for one picture: a row of classification.csv.

    A runtime that gave no answer has a single row, in which all fields that may be None are None.
    """

    photo: str | None
    preprocessing: Preparation | None
    runtime: str
    status: Status
    reason: str
    """Why there is no answer."""
    rank: int | None = None
    """Rank of the class; 1 is the most probable."""
    label: str | None = None
    probability: float | None = None
    same_top5_as_torch: bool | None = None
    """Whether this runtime gives the picture the five labels that PyTorch does, in whatever order."""


@per_job
def benchmark(job: Job) -> Iterator[Event]:
    """Compare and time a job's network (:class:`BenchmarkParams`). Nothing else should run at the same time.

    Inputs: `onnx`, a graph this project exported, and `source`, the file it was exported from; for a
    classifier, also `photos` (directory of a :class:`PhotoSet`). The output gets `timings.csv`
    (:class:`TimingRow`), for a classifier also `classification.csv` (:class:`AnswerRow`). Metrics have the
    batch, or the pictures' side, as their step. A classifier has two more: `RUNTIME_same_top5`, the share of
    pictures for which a runtime gives PyTorch's five labels; `reported_same_answer`, the share of photos to
    which PyTorch assigns the same class whether they are prepared correctly or as in the report.

    Every runtime has its own process. As many runtimes compile at once as there are cores, and only one
    computes at a time. The outputs of each runtime are compared with PyTorch's in float64, and only runtimes
    with correct outputs are timed. A policy is compared on states of its own episodes, a classifier on
    photos, each with every preparation, another network for pictures on random pictures. If a runtime
    crashes, hangs or raises an error, only its own rows fail.

    Raises:
        UserError: an input is missing, damaged, or of the wrong kind, or there is no photo of a given name.
    """
    params: BenchmarkParams = job.params
    threads = dict.fromkeys(n or joblib.cpu_count() for n in params.measurement.threads)
    cases = list(product(threads, params.sizes))
    rows: list[TimingRow] = []
    case: list[TimingRow] = []
    outputs: dict[str, Arrays] = {}
    with TemporaryDirectory(prefix="singleshot-") as scratch, ThreadPoolExecutor(joblib.cpu_count()) as pool:
        bench = _Bench(job, Path(scratch), pool)
        for n, (threads_now, size) in enumerate(cases, start=1):
            case, outputs = bench.measure(threads_now, size)
            rows += case
            timed = {
                f"{row.runtime}_p50_ms_threads_{threads_now}": row.timing.p50_ms
                for row in case
                if row.timing.p50_ms is not None
            }
            if timed:
                yield Metrics(size.size_px or size.batch, timed)
            yield Progress(n / len(cases))
    write_csv(job.output / "timings.csv", TimingRow, rows)
    if params.photos:
        answers = [answer for row in case for answer in bench.answers(row, outputs.get(row.runtime))]
        write_csv(job.output / "classification.csv", AnswerRow, answers)
        yield Metrics(0, bench.agreement(answers))


@dataclass(frozen=True)
class _Examples:
    inputs: Arrays
    """(examples, …)"""
    reference: Reference

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def batches(self, size: int) -> Arrays:
        """All inputs as (batches, size, …). The first ones are repeated to fill the last batch."""
        batches = -(-len(self) // size)
        order = np.arange(batches * size).reshape(batches, size) % len(self)
        return {name: array[order] for name, array in self.inputs.items()}

    def unbatched(self, outputs: Arrays) -> Arrays:
        """Outputs (batches, size, …) for :meth:`batches`, as (examples, …)."""
        return {name: array.reshape(-1, *array.shape[2:])[: len(self)] for name, array in outputs.items()}


class _Bench:
    """A network, and what its runtimes are asked."""

    def __init__(self, job: Job, scratch: Path, pool: ThreadPoolExecutor) -> None:
        self.params: BenchmarkParams = job.params
        self.card = read_card(job.inputs["onnx"])
        self.files = ModelFiles(job.inputs["onnx"], job.inputs["source"], self.card.form)
        self.network = open_network(self.files.source, self.card.form)
        self.asked = list(product(self.params.photos, PREPARATIONS))
        """Photos of a classifier, with their preparations."""
        self._fixed: Arrays | None = None
        if self.asked:
            self.classifier = CARDS.validate_python(self.network.card.details)
            photos, wanted = PhotoSet.open(job.inputs["photos"]), self.classifier.preprocessing
            prepared = [PREPARATIONS[how](photos.read(photo), wanted) for photo, how in self.asked]
            self._fixed = {"pictures": torch.stack(prepared).numpy()}
        elif self.network.card.kind == "policy":
            self._fixed = _visited(self.network, self.params)
        self._examples: dict[InputSize | None, _Examples] = {}
        self._scratch, self._pool = scratch, pool

    def measure(self, threads: int, size: InputSize) -> tuple[list[TimingRow], dict[str, Arrays]]:
        """The row of each runtime, and the outputs (examples, …) of those that gave some."""
        # The same for all numbers of threads, and mostly for all batch sizes, since float64 is slow.
        key = None if self._fixed else size
        if key not in self._examples:
            sizes = {"batch": size.batch, "height": size.size_px, "width": size.size_px}
            inputs = self._fixed or random_inputs(self.network.card.inputs, sizes, seed=0)
            self._examples[key] = _Examples(inputs, reference(self.network, inputs))
        limit = self.params.measurement.time_limit_s
        # Compilers run in parallel, each in its own process, and finish before anything is timed.
        prepare = partial(self._prepare, threads=threads, size=size, examples=self._examples[key])
        slow_first = sorted(self.params.runtimes, key=lambda name: not RUNTIMES[name].slow_to_prepare)
        prepared = {row.runtime: (row, outputs) for row, outputs in self._pool.map(prepare, slow_first)}
        rows = {name: prepared[name][0] for name in self.params.runtimes}
        right = {name: Worker(name, threads, limit).measure for name in rows if rows[name].status == "ok"}
        for name, timing in take_turns(right, self.params.measurement.seconds).items():
            if isinstance(timing, ProcessFailed):
                rows[name] = replace(rows[name], status="failed", reason=str(timing))
            else:
                rows[name] = replace(rows[name], timing=timing)
        return list(rows.values()), {name: outputs for name, (_, outputs) in prepared.items() if outputs}

    def _prepare(
        self, name: str, threads: int, size: InputSize, examples: _Examples
    ) -> tuple[TimingRow, Arrays]:
        version = self.params.runtimes[name]
        row = TimingRow(
            model=self.card.cell,
            runtime=name,
            threads=threads,
            size=size,
            version=version or "",
            form=self.card.form,
            file_bytes=self.files.onnx.stat().st_size,
        )
        if version is None:
            reason = "not installed; `make compilers` installs the optional runtimes"
            return replace(row, status="unavailable", reason=reason), {}
        try:
            worker = Worker(name, threads, self.params.measurement.time_limit_s)
            here = worker.describe()
            if here.unavailable:
                return replace(row, status="unavailable", reason=here.unavailable), {}
            row = replace(row, device=here.device, version=here.version)
            report = worker.prepare(self.files, examples.batches(size.batch), self._scratch)
        except ProcessFailed as failure:
            return replace(row, status="failed", reason=str(failure)), {}
        outputs = examples.unbatched(report.outputs)
        parity, reason = compare(outputs, examples.reference, report.precision)
        row = replace(
            row,
            status="failed" if reason else "ok",
            reason=reason,
            parity=parity,
            precision=report.precision,
            compile_s=report.compile_s,
            first_call_ms=report.first_call_ms,
        )
        return row, outputs

    def answers(self, row: TimingRow, outputs: Arrays | None) -> Iterator[AnswerRow]:
        """The answers of one runtime. A runtime that is too inexact to be timed answers all the same."""
        if outputs is None:
            yield AnswerRow(None, None, row.runtime, row.status, row.reason)
            return
        logits = torch.from_numpy(outputs["logits"]).float()
        if not logits.isfinite().all():
            yield AnswerRow(None, None, row.runtime, "failed", "returned NaN or infinity")
            return
        right = torch.from_numpy(self._examples[None].reference.exact)
        for (photo, how), its_logits, exact in zip(self.asked, logits, right, strict=True):
            same = _top5(its_logits) == _top5(exact)
            for rank, (label, probability) in enumerate(top(its_logits, self.classifier.labels, ANSWERS), 1):
                rounded = round(probability, DECIMALS)
                yield AnswerRow(photo, how, row.runtime, "ok", "", rank, label, rounded, same)

    def agreement(self, answers: Sequence[AnswerRow]) -> dict[str, float]:
        """A classifier's metrics."""
        first = dict(zip(self.asked, self._examples[None].reference.exact.argmax(axis=1), strict=True))
        survived = fmean(first[photo, "right"] == first[photo, "reported"] for photo in self.params.photos)
        same: dict[str, list[bool]] = defaultdict(list)
        for row in answers:
            if row.rank == 1:
                same[f"{row.runtime}_same_top5"].append(bool(row.same_top5_as_torch))
        return {"reported_same_answer": survived} | {name: fmean(shares) for name, shares in same.items()}


@torch.inference_mode()
def _visited(network: Network, params: BenchmarkParams) -> dict[str, NDArray[np.float32]]:
    """The inputs of a policy in its first steps: states and latents, (steps, …).

    A policy without an environment gets random ones.
    """
    details, steps = network.card.details, params.measurement.rollout_steps
    if params.environment is None or not params.environment.id:
        return random_inputs(network.card.inputs, {"samples": 1, **details, "batch": steps}, seed=0)
    environment = make_environment(params.environment)
    bounds = ActionBounds(**details["bounds"]) if details["bounds"] else None
    generator = stream("benchmark", 0)
    _, *shapes = unbatched_shapes(network.card.inputs, details).values()
    observation, _ = environment.reset(seed=0)
    visited = []
    for _ in range(steps):
        state = torch.as_tensor(observation, dtype=torch.float32)[None]
        given = (state, *(torch.randn(1, *shape, generator=generator) for shape in shapes))
        visited.append(given)
        outputs = network.module(*given)
        played = (outputs[0] if isinstance(outputs, tuple) else outputs)[0].numpy()
        observation, _, terminated, truncated, _ = environment.step(
            bounds.to_unit(played) if bounds else played
        )
        if terminated or truncated:
            observation, _ = environment.reset()
    environment.close()
    return {
        each.name: torch.cat(values).numpy()
        for each, values in zip(network.card.inputs, zip(*visited, strict=True), strict=True)
    }


def _top5(logits: Tensor) -> set[int]:
    return set(logits.topk(5).indices.tolist())
