"""Task: run the actor of a BCQ agent, from its packed file, on all runtimes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import onnx
from annotated_types import Ge

from singleshot.export.actors import open_actor, pack_actor
from singleshot.export.onnx_model import Form
from singleshot.export.runtimes.protocol import ModelFiles
from singleshot.export.to_onnx import card_of, to_onnx
from tasks.benchmark import BenchmarkParams, measure
from tasks.job import Event, Job, per_job


@dataclass(frozen=True)
class ActorParams:
    """The actor to measure, and how."""

    cell: str
    """Name of the actor in timings.csv, e.g. `HalfCheetah/bcq/snip-0.95/seed-0/actor`."""
    form: Form
    opset: Annotated[int, Ge(18)]
    benchmark: BenchmarkParams


@per_job
def benchmark_actor(job: Job) -> Iterator[Event]:
    """Compare and time a job's actor (:class:`ActorParams`), as `benchmark` does whole networks.

    The input is `source`, the `agent.safetensors` of a BCQ agent. Runtimes get its actor as a packed file and
    as a graph made from that file. Both are deleted afterwards, as an actor alone isn't deployed. The
    output gets `timings.csv` (:class:`~tasks.benchmark.TimingRow`).

    Raises:
        UserError: the input is missing, damaged, or no BCQ agent.
    """
    params: ActorParams = job.params
    with TemporaryDirectory() as directory:
        files = actor_files(
            Path(directory), job.inputs["source"], params.form, params.cell, job.commit, params.opset
        )
        yield from measure(params.benchmark, files, job.output)


def actor_files(directory: Path, source: Path, form: Form, cell: str, commit: str, opset: int) -> ModelFiles:
    """Write the actor of the agent in `source` to `directory`, as a packed file and as a graph."""
    files = ModelFiles(directory / "actor.onnx", directory / "actor.packed", form)
    files.source.write_bytes(pack_actor(source))
    actor = open_actor(files.source, form)
    card = card_of(actor, cell, commit, source)
    onnx.save(to_onnx(actor, card, opset), files.onnx)
    return files
