"""The contract between a task and whatever runs it.

A task is a generator function over one or more :class:`Job` s. It reads `job.inputs`, writes its
results as files into `job.output`, and yields events meanwhile, e.g. metrics to record and checkpoints to
resume from. It doesn't depend on where it runs or what its events are used for, so a plain loop can run it::

    for event in train([job]):
        print(event)

Most tasks compute one job after another; :func:`per_job` makes such a task from a function of one job. A task
that can advance several jobs at once (a stack of agents) gets them together. Files may depend only on
`params`, which include any seeds, and `inputs`: they have no times, host names or absolute paths, so that two
runs of a job are byte-identical.
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
    """Files to read, under the names that the task uses for them. Read-only."""
    output: Path
    """An empty directory for the results, which are kept only if the task runs to its end."""
    device: str = "cpu"
    """Torch device, already resolved (`cpu`, `cuda`, `cuda:1`, …)."""
    checkpoint: bytes | None = None
    """State of this job's last :class:`Checkpoint`, if the job was interrupted."""
    commit: str = "unknown"
    """Git commit of the code, for a model's card. Results must not depend on it in any other way."""


@dataclass(frozen=True)
class Metrics:
    """Measurements of one job, to be recorded."""

    step: int
    values: Mapping[str, float]
    job: int = 0
    """Position of the job in the sequence that the task was called with."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything that one job needs to continue from here with bit-identical results."""

    step: int
    state: bytes
    job: int = 0


@dataclass(frozen=True)
class Artifact:
    """A result that is worth showing before the job is done, e.g. a preview of a picture.

    It is shown at once and kept with the files in `output`, even if the job is interrupted later.
    """

    name: str
    """Path relative to `output`."""
    content: bytes
    job: int = 0


@dataclass(frozen=True)
class Progress:
    """The fraction of the whole call that is done, between 0 and 1."""

    fraction: float


Event = Metrics | Checkpoint | Artifact | Progress
Task = Callable[[Sequence[Job]], Iterator[Event]]


def per_job(compute: Callable[[Job], Iterator[Event] | None]) -> Task:
    """Turn a function of one job, which may yield events, into a task (a decorator)."""

    @wraps(compute)
    def task(jobs: Sequence[Job]) -> Iterator[Event]:
        for i, job in enumerate(jobs):
            for event in compute(job) or ():
                if isinstance(event, Progress):
                    yield Progress((i + event.fraction) / len(jobs))
                else:
                    yield replace(event, job=i)

    return task
