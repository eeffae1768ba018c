import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from singleshot.errors import UserError
from singleshot.job import Artifact, Checkpoint, Event, Job, Metrics, Progress, per_job
from toy_tasks.constants import OFFSET


@dataclass(frozen=True)
class SumParams:
    """Add `start`, `start` + 1, … for `steps` steps."""

    start: int
    steps: int = 4
    seconds: float = 0.0
    fail_at: int | None = None
    user_error_at: int | None = None
    room: int = 1000
    """How many may be added up at once: more run out of memory in the third step."""


def add_up(jobs: Sequence[Job]) -> Iterator[Event]:
    """A long job in small: a running sum with a checkpoint and a metric a step."""
    states = [json.loads(job.checkpoint) if job.checkpoint else {"step": 0, "sum": OFFSET} for job in jobs]
    assert len({state["step"] for state in states}) == 1
    for step in range(states[0]["step"] + 1, jobs[0].params.steps + 1):
        _mishap(jobs[0], step)
        if step == 3 and len(jobs) > jobs[0].params.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        for index, (job, state) in enumerate(zip(jobs, states, strict=True)):
            state["step"], state["sum"] = step, state["sum"] + job.params.start + step
            yield Metrics(step, {"sum": state["sum"]}, job=index)
            yield Checkpoint(step, json.dumps(state).encode(), job=index)
        yield Progress(step / jobs[0].params.steps)
    for job, state in zip(jobs, states, strict=True):
        given = {name: path.read_text() for name, path in job.inputs.items()}
        (job.output / "result.json").write_text(json.dumps({"sum": state["sum"], "inputs": given}))


def _mishap(job: Job, step: int) -> None:
    params = job.params
    time.sleep(params.seconds)
    if step == params.fail_at:
        raise ZeroDivisionError("the toy broke")
    if step == params.user_error_at:
        raise UserError("toy.txt: bad value 7; write 8")


@dataclass(frozen=True)
class KillParams:
    """Kill the process `times` times, each noted in the directory `deaths`."""

    deaths: str
    store: str
    """Where the driver keeps its cells."""
    times: int


def _is_kept(state: bytes, store: Path) -> bool:
    with suppress(FileNotFoundError):  # another cell's folder goes away meanwhile
        return any(path.read_bytes() == state for path in store.glob("checkpoints/*/1-*"))
    return False


@per_job
def kill_worker(job: Job) -> Iterator[Event]:
    """Die by SIGKILL in the middle, as often as asked, then finish."""
    state = job.params.deaths.encode()  # of no other cell
    deaths = len(list(Path(job.params.deaths).iterdir()))
    if job.checkpoint is None:
        yield Metrics(1, {"step": 1})
        yield Checkpoint(1, state)
    if deaths < job.params.times:
        (Path(job.params.deaths) / str(deaths)).touch()
        while not _is_kept(state, Path(job.params.store)):
            time.sleep(0.05)  # till the driver has what was yielded
        os.kill(os.getpid(), signal.SIGKILL)
    yield Metrics(2, {"step": 2})
    (job.output / "went_on_from").write_bytes(job.checkpoint or b"")


@dataclass(frozen=True)
class PreviewParams:
    """Show a preview a step, for `steps` steps."""

    steps: int = 3
    fail_at: int | None = None


@per_job
def show_previews(job: Job) -> Iterator[Event]:
    """A job that shows how far it is, and leaves the commit it was computed at."""
    for step in range(int(job.checkpoint or b"0") + 1, job.params.steps + 1):
        yield Artifact(f"previews/{step}.txt", f"step {step}".encode())
        yield Checkpoint(step, str(step).encode())
        if step == job.params.fail_at:
            raise ZeroDivisionError("the toy broke")
    (job.output / "commit.txt").write_text(job.commit)


@dataclass(frozen=True)
class MeetParams:
    """Wait in the directory `place` for `count` cells that are there at once."""

    place: str
    name: str
    count: int


@per_job
def meet(job: Job) -> Iterator[Event]:
    """Leave a file, and wait for those of the others."""
    place = Path(job.params.place)
    (place / job.params.name).touch()
    while len(list(place.iterdir())) < job.params.count:
        time.sleep(0.05)
    yield Progress(1.0)
