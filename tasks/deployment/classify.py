"""Task: classify photos on each runtime, with the right preprocessing and with that of the report."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, MinLen
from torch import Tensor, nn

from tasks.data.tables import write_csv
from tasks.deployment.classifier import (
    ClassifierCard,
    Preprocessing,
    load_classifier,
    preprocess,
    preprocess_as_reported,
    top,
)
from tasks.deployment.isolation import Worker, WorkerFailed
from tasks.deployment.runtimes import NOT_INSTALLED, RuntimeAt
from tasks.deployment.runtimes.protocol import ModelFiles
from tasks.job import Event, Job, Metrics, Progress, per_job
from tasks.style.datasets.photos import PhotoSet

Preparation = Literal["right", "reported"]
PREPARATIONS: dict[Preparation, Callable[[Tensor, Preprocessing], Tensor]] = {
    "right": preprocess,
    "reported": preprocess_as_reported,
}
DECIMALS = 6
"""Decimals of probabilities: float32 resolves them, and threads and instruction sets don't change them."""


@dataclass(frozen=True)
class ClassifyParams:
    """The photos to classify, and the runtimes to classify them on."""

    photos: Annotated[tuple[str, ...], MinLen(1)]
    """Names of photos in the :class:`PhotoSet`."""
    runtimes: Annotated[tuple[RuntimeAt, ...], MinLen(1)]
    time_limit_s: Annotated[float, Gt(0)]
    """Timeout of a runtime in seconds, for compiling the network and classifying all photos."""
    k: Annotated[int, Ge(1)] = 5
    """Number of answers for each picture."""


@dataclass(frozen=True)
class AnswerRow:
    """One answer of one runtime for one picture: a row of classification.csv.

    A runtime that gave no answer has a single row, in which all fields that may be None are None.
    """

    photo: str | None
    preprocessing: Preparation | None
    runtime: str
    status: Literal["ok", "failed", "unavailable"]
    reason: str
    """Why there is no answer."""
    rank: int | None
    """Rank of the class; 1 is the most probable."""
    label: str | None
    probability: float | None
    same_top5_as_torch: bool | None
    """Whether this runtime gives the picture the five labels that PyTorch does, in whatever order."""


class _Unavailable(Exception):  # noqa: N818 (an outcome that the table reports)
    """A runtime can't run here; the message is the reason."""


@dataclass(frozen=True)
class _Picture:
    """A preprocessed photo, and PyTorch's logits for it."""

    photo: str
    preprocessing: Preparation
    pixels: Tensor
    """(3, S, S)"""
    logits: Tensor
    """PyTorch's logits (classes)."""


@per_job
def classify(job: Job) -> Iterator[Event]:
    """Classify a job's photos (:class:`ClassifyParams`) on every runtime, each on one thread.

    As many runtimes compile and compute at once as there are cores. Inputs: `photos` (directory of a
    :class:`PhotoSet`), `source` (written by :func:`~tasks.deployment.classifier.save_classifier`) and `onnx`,
    its graph. The output gets `classification.csv` (:class:`AnswerRow`). Each runtime has a process of its
    own, so a runtime that crashes or hangs loses only its own rows. The reference is computed with PyTorch in
    this process.

    Metrics: `RUNTIME_same_top5`, the share of pictures, with both preprocessings, for which a runtime gives
    PyTorch's five labels; `reported_same_answer`, the share of photos to which PyTorch assigns the same class
    with both preprocessings.

    Raises:
        UserError: an input is damaged, or there is no photo with a given name.
    """
    params: ClassifyParams = job.params
    network, card = load_classifier(job.inputs["source"])
    pictures = _pictures(job, network, card)
    rows: list[AnswerRow] = []
    answers = partial(_answers, job=job, pictures=pictures, labels=card.labels)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for n, answered in enumerate(pool.map(answers, params.runtimes), start=1):
            rows += answered
            yield Progress(n / len(params.runtimes))
    write_csv(job.output / "classification.csv", AnswerRow, rows)
    yield Metrics(0, _metrics(rows, pictures))


def _pictures(job: Job, network: nn.Module, card: ClassifierCard) -> list[_Picture]:
    """Every photo with every preprocessing."""
    photos = PhotoSet.open(job.inputs["photos"])
    pictures = []
    for photo, (preprocessing, prepare) in product(job.params.photos, PREPARATIONS.items()):
        pixels = prepare(photos.read(photo), card.preprocessing)
        with torch.inference_mode():
            (logits,) = network(pixels[None])
        pictures.append(_Picture(photo, preprocessing, pixels, logits))
    return pictures


def _answers(
    runtime: RuntimeAt, job: Job, pictures: Sequence[_Picture], labels: Sequence[str]
) -> list[AnswerRow]:
    """The rows of one runtime."""
    try:
        return list(_rows(runtime.name, pictures, _logits(runtime, job, pictures), labels, job.params.k))
    except _Unavailable as reason:
        return [_no_answer(runtime.name, "unavailable", str(reason))]
    except WorkerFailed as reason:
        return [_no_answer(runtime.name, "failed", str(reason))]


def _logits(runtime: RuntimeAt, job: Job, pictures: Sequence[_Picture]) -> Tensor:
    """The logits (pictures, classes) from one runtime.

    Raises:
        _Unavailable: the runtime can't run here.
        WorkerFailed: the runtime crashed, hung, raised an error, or returned NaN or infinity.
    """
    if runtime.version is None:
        raise _Unavailable(NOT_INSTALLED)
    model = ModelFiles(job.inputs["onnx"], job.inputs["source"], "dense")
    inputs = torch.stack([picture.pixels for picture in pictures])[:, None]  # batches of one
    with Worker(runtime.name, job.params.time_limit_s) as worker:
        if reason := worker.describe().unavailable:
            raise _Unavailable(reason)
        report = worker.prepare(model, {"pictures": inputs.numpy()}, threads=1)
    logits = torch.from_numpy(report.outputs["logits"]).float()[:, 0]
    if not logits.isfinite().all():
        raise WorkerFailed("returned NaN or infinity")
    return logits


def _rows(
    runtime: str, pictures: Sequence[_Picture], logits: Tensor, labels: Sequence[str], k: int
) -> Iterator[AnswerRow]:
    for picture, its_logits in zip(pictures, logits, strict=True):
        same = _top5(its_logits) == _top5(picture.logits)
        for rank, answer in enumerate(top(its_logits, labels, k), start=1):
            yield AnswerRow(
                picture.photo,
                picture.preprocessing,
                runtime,
                "ok",
                "",
                rank,
                answer.label,
                round(answer.probability, DECIMALS),
                same,
            )


def _no_answer(runtime: str, status: Literal["failed", "unavailable"], reason: str) -> AnswerRow:
    return AnswerRow(None, None, runtime, status, reason, None, None, None, None)


def _top5(logits: Tensor) -> set[int]:
    return set(logits.topk(5).indices.tolist())


def _metrics(rows: Sequence[AnswerRow], pictures: Sequence[_Picture]) -> dict[str, float]:
    first = {(picture.photo, picture.preprocessing): int(picture.logits.argmax()) for picture in pictures}
    survived = fmean(first[photo, "right"] == first[photo, "reported"] for photo, _ in first)
    same: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        if row.rank == 1:
            same[f"{row.runtime}_same_top5"].append(bool(row.same_top5_as_torch))
    return {"reported_same_answer": survived} | {name: fmean(shares) for name, shares in same.items()}
