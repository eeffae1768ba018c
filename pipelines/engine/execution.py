"""One call of a task, which works the same way on all executors."""

import collections
import ctypes
import dataclasses
import gc
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types

from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.disks import disk_full_error, is_disk_full
from pipelines.engine.provenance import Made, git_commit
from singleshot.errors import UserError, is_out_of_memory
from singleshot.job import Event, Job, Task

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
KEPT_BYTES = 2**31 - 1
"""Size of an array above which its memory returns to the system: the largest number that mallopt(3) takes."""


@dataclasses.dataclass(frozen=True)
class ExecutorConfig:
    """Where cells run. These settings change no result and are in no digest."""

    kind: Literal["local", "ray"] = "ray"
    address: str | None = None
    """Address (`host:port`) of a Ray cluster that has this machine as a node; RAY_ADDRESS overrides it. null:
    a temporary cluster on this machine, for the training of agents alone."""
    num_cpus: Annotated[int, annotated_types.Ge(1)] = 1
    """Number of cores for each group of cells. It is also the number of compute threads (another number may
    round differently) and of the processes that step the environments of a large stack."""
    num_gpus: Annotated[float, annotated_types.Ge(0)] | Literal["auto"] = "auto"
    """Number of GPUs for each group of cells that can use one; with a fraction, groups share a GPU. `auto`:
    1 if the cluster has any."""
    memory_gb: Annotated[float, annotated_types.Gt(0)] | None = None
    """Memory to reserve for each group of cells, in GiB. null: no memory is reserved."""
    stack_size: Annotated[int, annotated_types.Ge(1)] | Literal["auto"] = "auto"
    """Number of agents that train as one batched model. `auto`: 1 on a CPU; on a GPU, all agents of an
    environment and algorithm, if its free memory holds them. A stack that runs out of memory is halved, and
    goes on from its last checkpoints."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of cells that can use a GPU. `auto`: a GPU if there is one."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """The last event of a job, with the job's files by their paths relative to the output directory."""

    job: int
    files: Mapping[str, bytes]
    made: Made


@dataclasses.dataclass(frozen=True)
class CellBatch:
    """Cells for one call of their task. Either none has a checkpoint, or all have one of the same step."""

    cells: tuple[Cell, ...]
    attempt: int = 0
    commit: str = "unknown"


def execute(
    batch: CellBatch,
    inputs: Sequence[Mapping[str, Path]],
    checkpoints: Sequence[bytes | None],
    config: ExecutorConfig,
    gpu: bool,
) -> Iterator[Event | Finished]:
    """Call the task of `batch`; yields its events, then the files of each job."""
    import threadpoolctl
    import torch

    torch.set_num_threads(config.num_cpus)
    keep_freed_memory()
    device = device_of(config, gpu)
    started = time.monotonic()
    temporary = tempfile.TemporaryDirectory(prefix="singleshot-")
    with temporary as scratch, threadpoolctl.threadpool_limits(config.num_cpus):
        jobs = [
            Job(
                cell.params,
                inputs[index],
                Path(scratch, str(index)),
                device,
                checkpoints[index],
                batch.commit,
            )
            for index, cell in enumerate(batch.cells)
        ]
        for job in jobs:
            job.output.mkdir()
        yield from _run(batch.cells[0].task, jobs)
        made = Made.now((time.monotonic() - started) / len(jobs), batch.commit, device)
        for index, job in enumerate(jobs):
            files = sorted(path for path in job.output.rglob("*") if path.is_file())
            contents = {str(path.relative_to(job.output)): path.read_bytes() for path in files}
            yield Finished(index, contents, made)


def keep_freed_memory() -> None:
    """Have the C library keep the memory of freed arrays for new ones, if it is glibc.

    By default, it returns the memory of large arrays to the system, which has to clear each page before it
    hands it out again. This takes 6 to 10 % of the time of a dense agent's training, and 7 % of a style
    transfer.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)


class OutOfMemoryError(Exception):
    """The cells of a batch don't fit into memory together; half of them may fit."""


class LostError(Exception):
    """The process or node that computed a batch was lost."""


def _run(task: Task, jobs: Sequence[Job]) -> Iterator[Event]:
    """The events of a task.

    Raises:
        OutOfMemoryError: a GPU or this machine ran out of memory. The task's own exception is released first,
            and with it the frames that hold its tensors.
        DiskFullError: a disk of this machine is full.
    """
    import torch

    try:
        yield from task(jobs)
        return
    except Exception as error:
        if is_disk_full(error):
            raise disk_full_error(error) from error
        if isinstance(error, UserError) or not is_out_of_memory(error):
            raise
        reason = first_line(error)
    gc.collect()
    torch.cuda.empty_cache()
    raise OutOfMemoryError(reason)


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def device_of(config: ExecutorConfig, gpu: bool) -> str:
    """The torch device on this machine for a cell; `gpu` says whether the cell can use a GPU.

    Raises:
        UserError: the configuration asks for a GPU, and there is none.
    """
    import torch

    if config.device == "cpu" or not gpu:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if config.device == "cuda":
        raise UserError("executor.device is cuda, but torch finds no CUDA device; set it to auto or cpu")
    return "cpu"


def batches(
    cells: Sequence[Cell], store: CellStore, stack_size: int, attempt: int = 0
) -> Iterator[CellBatch]:
    """Group cells that may be stacked and are at the same step, at most `stack_size` in a batch."""
    groups: dict[Any, list[Cell]] = collections.defaultdict(list)
    for cell in cells:
        checkpoint = store.checkpoint(cell)
        groups[cell.stack or cell.digest, checkpoint and checkpoint.step].append(cell)
    commit = git_commit()
    for group in groups.values():
        for start in range(0, len(group), stack_size):
            yield CellBatch(tuple(group[start : start + stack_size]), attempt, commit)


def checkpoints_of(batch: CellBatch, store: CellStore) -> list[bytes | None]:
    """The states from which the cells of a batch go on; None for a cell without a checkpoint."""
    saved = [store.checkpoint(cell) for cell in batch.cells]
    return [checkpoint.state if checkpoint else None for checkpoint in saved]


def stack_size(config: ExecutorConfig, cells: int, on_gpu: bool) -> int:
    """The largest number of cells in a batch; `cells` is the number of cells that may be stacked."""
    if config.stack_size != "auto":
        return config.stack_size
    return cells if on_gpu else 1
