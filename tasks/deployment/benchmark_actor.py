"""Task: the actor of a BCQ agent, out of its packed file, by all runtimes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import onnx
from annotated_types import Ge

from tasks.deployment.actors import open_actor, pack_actor
from tasks.deployment.benchmark import BenchmarkParams, measure
from tasks.deployment.export import card_of, to_onnx
from tasks.deployment.onnx_model import Form
from tasks.deployment.runtimes.protocol import ModelFiles
from tasks.job import Event, Job, per_job


@dataclass(frozen=True)
class ActorParams:
    """The actor to measure, and how."""

    cell: str
    """Its name in timings.csv, e.g. `HalfCheetah/bcq/snip-0.95/seed-0/actor`."""
    form: Form
    opset: Annotated[int, Ge(18)]
    benchmark: BenchmarkParams


@per_job
def benchmark_actor(job: Job) -> Iterator[Event]:
    """Compare and time a job's actor (:class:`ActorParams`), as `benchmark` does whole networks.

    Input is `source`, the `agent.safetensors` of a BCQ agent. Runtimes are given its actor in a packed file,
    and as a graph made of that. An actor alone is nothing to deploy, so both go in the end. The output gets
    `timings.csv` (:class:`~tasks.deployment.benchmark.TimingRow`).

    Raises:
        UserError: the input is missing, damaged, or no agent of BCQ.
    """
    params: ActorParams = job.params
    with TemporaryDirectory() as directory:
        files = actor_files(
            Path(directory), job.inputs["source"], params.form, params.cell, job.commit, params.opset
        )
        yield from measure(params.benchmark, files, job.output)


def actor_files(directory: Path, source: Path, form: Form, cell: str, commit: str, opset: int) -> ModelFiles:
    """The actor of the agent that `source` holds, packed, and as a graph, in `directory`."""
    files = ModelFiles(directory / "actor.onnx", directory / "actor.packed", form)
    files.source.write_bytes(pack_actor(source))
    actor = open_actor(files.source, form)
    card = card_of(actor, cell, commit, source)
    onnx.save(to_onnx(actor, card, opset), files.onnx)
    return files
