"""Task: run a classifier on all runtimes, on photos prepared rightly and as in the report."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Annotated

import torch
from annotated_types import Ge, MinLen
from torch import Tensor, nn

from singleshot.export.classifier import PREPARATIONS, ClassifierCard, Preparation, load_classifier, top
from singleshot.export.runtimes.protocol import ModelFiles
from singleshot.style.datasets.photos import PhotoSet
from tasks.benchmark import BenchmarkParams, Outcome, Status, measure
from tasks.job import Event, Job, Metrics, per_job
from tasks.tables import write_csv

DECIMALS = 6
"""Decimals of probabilities: float32 resolves them, and threads and instruction sets don't change them."""


@dataclass(frozen=True)
class ClassifierBenchmarkParams:
    """The photos to classify, and how to measure the classifier."""

    photos: Annotated[tuple[str, ...], MinLen(1)]
    """Names of photos in the :class:`PhotoSet`."""
    benchmark: BenchmarkParams
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
    status: Status
    reason: str
    """Why there is no answer."""
    rank: int | None
    """Rank of the class; 1 is the most probable."""
    label: str | None
    probability: float | None
    same_top5_as_torch: bool | None
    """Whether this runtime gives the picture the five labels that PyTorch does, in whatever order."""


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
def benchmark_classifier(job: Job) -> Iterator[Event]:
    """Compare, time and question a job's classifier (:class:`ClassifierBenchmarkParams`).

    It is compared and timed as `benchmark` does other networks, but on photos, each with every preparation.
    Inputs: `photos` (directory of a :class:`PhotoSet`), `source` (written by
    :func:`~singleshot.export.classifier.save_classifier`) and `onnx`, its graph. The output gets
    `timings.csv` (:class:`~tasks.benchmark.TimingRow`) and `classification.csv` (:class:`AnswerRow`).

    Metrics, besides those of `benchmark`: `RUNTIME_same_top5`, the share of pictures, with both preparations,
    for which a runtime gives PyTorch's five labels; `reported_same_answer`, the share of photos to which
    PyTorch assigns the same class with both preparations.

    Raises:
        UserError: an input is damaged, or there is no photo with a given name.
    """
    params: ClassifierBenchmarkParams = job.params
    network, card = load_classifier(job.inputs["source"])
    pictures = _pictures(job, network, card)
    files = ModelFiles(job.inputs["onnx"], job.inputs["source"], "dense")
    inputs = {"pictures": torch.stack([picture.pixels for picture in pictures]).numpy()}
    outcomes = yield from measure(params.benchmark, files, job.output, inputs)
    rows = [row for outcome in outcomes for row in _rows(outcome, pictures, card.labels, params.k)]
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


def _rows(
    outcome: Outcome, pictures: Sequence[_Picture], labels: Sequence[str], k: int
) -> Iterator[AnswerRow]:
    """The answers of one runtime. A runtime that is too inexact to be timed answers all the same."""
    if outcome.outputs is None:
        yield _no_answer(outcome.row.runtime, outcome.row.status, outcome.row.reason)
        return
    logits = torch.from_numpy(outcome.outputs["logits"]).float()
    if not logits.isfinite().all():
        yield _no_answer(outcome.row.runtime, "failed", "returned NaN or infinity")
        return
    for picture, its_logits in zip(pictures, logits, strict=True):
        same = _top5(its_logits) == _top5(picture.logits)
        for rank, answer in enumerate(top(its_logits, labels, k), start=1):
            yield AnswerRow(
                picture.photo,
                picture.preprocessing,
                outcome.row.runtime,
                "ok",
                "",
                rank,
                answer.label,
                round(answer.probability, DECIMALS),
                same,
            )


def _no_answer(runtime: str, status: Status, reason: str) -> AnswerRow:
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
