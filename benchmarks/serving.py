"""Answers a second, and how long each takes: `python -m benchmarks.serving`, by clients without a pause.

Everything shares one machine: the services of the default configuration, Ray, and the clients (a thread
each). `alone` is the same graph called in a loop, batch 1, one thread: no HTTP, no process but its own.
"""

import argparse
import io
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import psutil
import requests
from PIL import Image
from skimage.data import chelsea

from benchmarks.command import positive, run_main
from benchmarks.paired import heading
from pipelines.config.params import load_config
from pipelines.engine.execution import ExecutorConfig
from pipelines.serving.models import Cards, Model, cards_of, find_models
from pipelines.serving.pictures import decode
from pipelines.serving.server import running
from tasks.deployment.classifier import ClassifierCard, preprocess
from tasks.deployment.onnx_model import load_onnx
from tasks.errors import UserError

CLIENTS = (1, 8, 32)
PICTURE_PX = 256
ALGORITHMS = ("bc", "bcq")


@dataclass(frozen=True)
class Question:
    """What clients ask, and the same without a server."""

    what: str
    ask: Callable[[requests.Session], requests.Response]
    alone: Callable[[], object]


@dataclass(frozen=True)
class Answer:
    """Of one request."""

    seconds: float
    batch: int
    status: int


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", type=Path, default=Path("models/onnx"))
    parser.add_argument("--seconds", type=positive(float), default=5.0, help="for each row")
    arguments = parser.parse_args()
    models = find_models(arguments.models)
    _check_all_asked(models, arguments.models)
    with running(models, load_config().serving, ExecutorConfig(kind="ray")) as (address,):
        print(heading("ray", "onnxruntime"))
        print(f"Load before: {psutil.getloadavg()[0]:.1f}.\n")
        print("| request | clients | answers/s | p50 ms | p99 ms | mean batch | refused | alone/s |")
        print("|---|---|---|---|---|---|---|---|")
        for question in _questions(models, address):
            alone = _per_second(question.alone, arguments.seconds)
            for clients in CLIENTS:
                answers = _measure(question, clients, arguments.seconds)
                print(
                    f"| {question.what} | {clients} | {_summary(answers, arguments.seconds)} | {alone:.0f} |"
                )


def _check_all_asked(models: list[Model], directory: Path) -> None:
    cards = [model.card for model in models]
    found = {card.details["algorithm"] if card.kind == "policy" else card.kind for card in cards}
    if missing := {*ALGORITHMS, "style"} - found:  # classifiers may be missing: random ones aren't served
        names = ", ".join(sorted(missing))
        raise UserError(f"{directory}: no graph of {names}; export some with `dvc repro export_onnx`")


def _questions(models: list[Model], address: str) -> Iterator[Question]:
    cards: Cards = cards_of(models)
    paths = {model.name: model.path for model in models}
    for algorithm in ALGORITHMS:
        name = next(name for name, card in cards["policy"].items() if card.details["algorithm"] == algorithm)
        card = cards["policy"][name]
        shapes = {
            each.name: [
                1 if size == "batch" else size if isinstance(size, int) else card.details[size]
                for size in each.shape
            ]
            for each in card.inputs
        }
        inputs = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        body = {"state": inputs["state"][0].tolist(), "policy": name}
        yield Question(
            f"act, {name} ({card.form})",
            _asking(f"{address}/act/{card.details['task']}", json=body),
            _alone(paths[name], **inputs),
        )
    picture = io.BytesIO()
    Image.fromarray(chelsea()).resize((PICTURE_PX, PICTURE_PX)).save(picture, "JPEG", quality=95)
    pixels = decode(picture.getvalue(), PICTURE_PX**2)
    assert not hasattr(pixels, "error")
    posted = {"data": picture.getvalue(), "headers": {"Content-Type": "image/jpeg"}}
    for name, card in cards["classifier"].items():
        prepared = preprocess(pixels, ClassifierCard.of(card.details).preprocessing)
        yield Question(
            f"classify, {name}, {PICTURE_PX} px",
            _asking(f"{address}/classify", **posted),
            _alone(paths[name], pictures=prepared[None].numpy()),
        )
    style = next(iter(cards["style"]))
    yield Question(
        f"stylize, {style}, {PICTURE_PX} px",
        _asking(f"{address}/stylize/{style}", **posted),
        _alone(paths[style], pictures=pixels[None].numpy()),
    )


def _asking(url: str, **body: object) -> Callable[[requests.Session], requests.Response]:
    return lambda session: session.post(url, timeout=120, **body)


def _alone(path: Path, **inputs: np.ndarray) -> Callable[[], object]:
    model = load_onnx(path, threads=1)
    return lambda: model(**inputs)


def _per_second(call: Callable[[], object], seconds: float) -> float:
    call()
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
        calls += 1
    return calls / (time.perf_counter() - start)


def _measure(question: Question, clients: int, seconds: float) -> list[Answer]:
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda _: _client(question, 1.0), range(clients)))  # warm-up
        return list(chain(*pool.map(lambda _: _client(question, seconds), range(clients))))


def _client(question: Question, seconds: float) -> list[Answer]:
    answers, end = [], time.perf_counter() + seconds
    with requests.Session() as session:
        while (start := time.perf_counter()) < end:
            response = question.ask(session)
            batch = int(response.headers.get("X-Batch-Size", 0))
            answers.append(Answer(time.perf_counter() - start, batch, response.status_code))
    return answers


def _summary(answers: list[Answer], seconds: float) -> str:
    good = [answer for answer in answers if answer.status == 200]
    p50, p99 = np.percentile([answer.seconds * 1000 for answer in good], (50, 99))
    # The mean over batches, of which each request tells the size of its own.
    batch = len(good) / sum(1 / answer.batch for answer in good)
    return f"{len(good) / seconds:.0f} | {p50:.0f} | {p99:.0f} | {batch:.1f} | {len(answers) - len(good)}"


if __name__ == "__main__":
    run_main(main)
