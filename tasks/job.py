"""The contract between a task and whatever runs it.

A task is a generator function over one or more :class:`Job` s. It reads `job.inputs`, leaves its
results as files in `job.output`, and yields events meanwhile: metrics to record, checkpoints to go
on from. It knows nothing of where it runs or who listens, so a plain loop may drive it::

    for event in train([job]):
        print(event)

Most tasks compute a job alone, and are functions of one (:func:`per_job`). One that can advance several
at once (a stack of agents) is handed them together. Files must depend on `params`, `inputs` and `seed`s in
them alone: no times, host names or absolute paths, so that two runs of a job are byte-identical.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One unit of work: parameters in, files out."""

    params: Any
    """The task's own frozen dataclass of parameters."""
    inputs: Mapping[str, Path]
    """Files to read, by the name the task gives them. Read-only."""
    output: Path
    """An empty directory for the results. Nothing of it is kept unless the task runs to its end."""
    device: str = "cpu"
    """Torch device, already resolved (`cpu`, `cuda`, `cuda:1`, …)."""
    checkpoint: bytes | None = None
    """What this job's last :class:`Checkpoint` held, if it was interrupted."""
    commit: str = "unknown"
    """Git commit of the code, to name in a model's card. No result may depend on it otherwise."""


@dataclass(frozen=True)
class Metrics:
    """Measurements of one job, for whoever records them."""

    step: int
    values: Mapping[str, float]
    job: int = 0
    """Position of the job in the sequence that the task was called with."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything one job needs to go on from here, bit for bit."""

    step: int
    state: bytes
    job: int = 0


@dataclass(frozen=True)
class Artifact:
    """A result that is worth a look before the job is done, e.g. a preview of a picture.

    It is shown at once, and kept with the files of `output`, also those from before an interruption.
    """

    name: str
    """Path relative to `output`."""
    content: bytes
    job: int = 0


@dataclass(frozen=True)
class Progress:
    """A fraction of the whole call that is done, between 0 and 1."""

    fraction: float


Event = Metrics | Checkpoint | Artifact | Progress
Task = Callable[[Sequence[Job]], Iterator[Event]]


def per_job(compute: Callable[[Job], Iterator[Event] | None]) -> Task:
    """A decorator that makes a task of a function of one job, which yields events if it has any."""

    @wraps(compute)
    def task(jobs: Sequence[Job]) -> Iterator[Event]:
        for i, job in enumerate(jobs):
            for event in compute(job) or ():
                if isinstance(event, Progress):
                    yield Progress((i + event.fraction) / len(jobs))
                else:
                    yield replace(event, job=i)

    return task
