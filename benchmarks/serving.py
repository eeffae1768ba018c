"""Answers per second and latency: `python -m benchmarks.serving`, with clients that do not pause.

Actions are also requested from `mlflow models serve` and from a plain FastAPI server with onnxruntime
(`plain_server.py`), each with as many processes. All servers share one machine with the clients, which are
coroutines of one process. Servers are asked in turn, in rounds, and each row has the round whose number of
answers is the median, so that other work on the machine slows all of them alike. CPU time is that of the
servers alone: it depends less on what else the machine does. `alone` is the same graph called in a loop with
batch 1 on one thread, without HTTP or other processes.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import psutil
import uvloop
from numpy.typing import NDArray
from PIL import Image
from skimage.data import chelsea

from benchmarks.command import positive, run_main
from benchmarks.paired import heading
from pipelines.config.params import load_config
from pipelines.config.serving import ServingConfig
from pipelines.engine.execution import ExecutorConfig
from pipelines.serving.models import Model, find_models
from pipelines.serving.pictures import decode
from pipelines.serving.server import running
from singleshot.errors import UserError
from singleshot.export.classifier import ClassifierCard, preprocess
from singleshot.export.onnx_model import GraphCard, load_onnx

CLIENTS = (1, 8, 32)
ROUNDS = 5
PICTURE_PX = 256
ALGORITHMS = ("bc", "bcq")


@dataclass(frozen=True)
class Question:
    """A request that clients send to a server, and how the table names both."""

    what: str
    server: str
    port: int
    path: str
    body: bytes
    media_type: str = "application/json"

    @property
    def request(self) -> bytes:
        """The request as it goes over the connection."""
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {self.media_type}\r\n"
        return f"{head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    seconds: float
    good: bool


@dataclass(frozen=True)
class Round:
    """The answers of a server in some time."""

    answers: list[Answer]
    elapsed: float
    """Seconds until the last answer."""
    cpu: float
    """Seconds of CPU that the servers took."""

    @property
    def good(self) -> list[float]:
        """Milliseconds of the good answers."""
        return [1000 * answer.seconds for answer in self.answers if answer.good]

    @property
    def rate(self) -> float:
        """Good answers per second."""
        return len(self.good) / self.elapsed


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", type=Path, default=Path("models/onnx"))
    parser.add_argument("--seconds", type=positive(float), default=5.0, help="seconds for each row")
    arguments = parser.parse_args()
    models = find_models(arguments.models)
    asked = _asked(models, arguments.models)
    config = load_config().serving
    print(heading("onnxruntime", "uvicorn", "fastapi", "mlflow"))
    print(f"{config.workers} processes a server. Load before: {psutil.getloadavg()[0]:.1f}.\n")
    print(
        "| request | server | clients | answers/s | p50 ms | p99 ms | refused | CPU ms an answer | alone/s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with running(models, config, ExecutorConfig()):
        for model in asked:
            with contextlib.ExitStack() as servers:
                questions = [_ours(model, config.port)]
                if model.card.kind == "policy":
                    questions.append(servers.enter_context(_plain(model, config)))
                    questions.append(servers.enter_context(_mlflow(model, config)))
                _print_rows(questions, _alone(model), arguments.seconds)


def _asked(models: list[Model], directory: Path) -> list[Model]:
    """A dense and a pruned policy of each algorithm, a style, and a classifier if there is one."""
    chosen: dict[str, Model] = {}
    for model in models:
        card = model.card
        pruned = "pruned" if card.sparsity else "dense"
        chosen.setdefault(
            f"{card.details['algorithm']} {pruned}" if card.kind == "policy" else card.kind, model
        )
    wanted = {"style", *(f"{name} {kind}" for name in ALGORITHMS for kind in ("dense", "pruned"))}
    if missing := wanted - chosen.keys():  # a classifier may be missing: random ones aren't served
        names = ", ".join(sorted(missing))
        raise UserError(f"{directory}: no graph of {names}; export some with `dvc repro export`")
    return list(chosen.values())


def _inputs(card: GraphCard) -> dict[str, NDArray[np.float32]]:
    """The graph's inputs for one state or one picture."""
    if card.kind == "policy":
        sizes = {"batch": 1} | {name: card.details.get(name, 1) for name in ("samples", "latent_size")}
        return {
            each.name: np.zeros([sizes[n] if isinstance(n, str) else n for n in each.shape], np.float32)
            for each in card.inputs
        }
    picture = decode(_photo(), PICTURE_PX**2)
    if card.kind == "classifier":
        picture = preprocess(picture, ClassifierCard.of(card.details).preprocessing)
    return {"pictures": picture[None].numpy()}


def _photo() -> bytes:
    content = io.BytesIO()
    Image.fromarray(chelsea()).resize((PICTURE_PX, PICTURE_PX)).save(content, "JPEG", quality=95)  # type: ignore[no-untyped-call]
    return content.getvalue()


def _alone(model: Model) -> Callable[[], object]:
    graph, inputs = load_onnx(model.path, threads=1), _inputs(model.card)
    return lambda: graph(**inputs)


def _ours(model: Model, port: int) -> Question:
    card = model.card
    if card.kind == "policy":
        body = json.dumps({"state": _inputs(card)["state"][0].tolist(), "policy": model.name}).encode()
        return Question(_name(model), "serve", port, f"/act/{card.details['environment']}", body)
    path = "/classify" if card.kind == "classifier" else f"/stylize/{model.name}"
    return Question(f"{path}, {PICTURE_PX} px", "serve", port, path, _photo(), "image/jpeg")


def _name(model: Model) -> str:
    return f"{model.name} ({model.card.form})"


@contextlib.contextmanager
def _plain(model: Model, config: ServingConfig) -> Iterator[Question]:
    command = "-m uvicorn --factory benchmarks.plain_server:make_app --log-level error"
    body = json.dumps({name: values.tolist() for name, values in _inputs(model.card).items()}).encode()
    with _started(command, config.workers, GRAPH=str(model.path)) as port:
        yield _answering(Question(_name(model), "FastAPI, onnxruntime", port, "/act", body))


@contextlib.contextmanager
def _mlflow(model: Model, config: ServingConfig) -> Iterator[Question]:
    import mlflow.onnx

    inputs = {name: values.tolist() for name, values in _inputs(model.card).items()}
    with tempfile.TemporaryDirectory() as directory:
        mlflow.onnx.save_model(onnx.load(model.path), f"{directory}/model", save_as_external_data=False)
        command = f"-m mlflow models serve --model-uri {directory}/model --env-manager local"
        with _started(command, config.workers) as port:
            body = json.dumps({"inputs": inputs}).encode()
            yield _answering(Question(_name(model), "mlflow models serve", port, "/invocations", body))


@contextlib.contextmanager
def _started(command: str, workers: int, **environment: str) -> Iterator[int]:
    """Start a server and give its port; the server and its child processes end with the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, *command.split(), "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(
        [*words, "--workers", str(workers)],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield port
        finally:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(psutil.Error):
                    each.terminate()


def _answering(question: Question, patience_s: float = 300) -> Question:
    """Return the question once its server answers it."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{question.port}{question.path}",
        question.body,
        {"Content-Type": question.media_type},
    )
    end = time.monotonic() + patience_s
    while True:
        try:
            urllib.request.urlopen(request).read()
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > end:
                raise UserError(f"{question.server} doesn't answer in {patience_s:g} s") from None
            time.sleep(0.5)
        else:
            return question


def _print_rows(questions: list[Question], alone: Callable[[], object], seconds: float) -> None:
    per_second = _per_second(alone, seconds)
    for clients in CLIENTS:
        for question in questions:
            uvloop.run(_measure(question, clients, 1.0))  # warm-up
        rounds = [
            [_round(question, clients, seconds / ROUNDS) for question in questions] for _ in range(ROUNDS)
        ]
        for question, taken in zip(questions, zip(*rounds, strict=True), strict=True):
            median = sorted(taken, key=lambda each: each.rate)[ROUNDS // 2]
            good = median.good
            p50, p99 = np.percentile(good, (50, 99))
            cpu, refused = 1000 * median.cpu / len(good), len(median.answers) - len(good)
            print(
                f"| {question.what} | {question.server} | {clients} | {median.rate:.0f} | {p50:.2f} | "
                f"{p99:.1f} | {refused} | {cpu:.2f} | {per_second:.0f} |",
                flush=True,
            )


def _round(question: Question, clients: int, seconds: float) -> Round:
    before, start = _servers_cpu(), time.perf_counter()
    answers = uvloop.run(_measure(question, clients, seconds))
    # Longer than `seconds`: clients wait for the answers to all requests that have begun.
    elapsed = time.perf_counter() - start
    return Round(answers, elapsed, _servers_cpu() - before)


def _per_second(call: Callable[[], object], seconds: float) -> float:
    call()
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
        calls += 1
    return calls / (time.perf_counter() - start)


def _servers_cpu() -> float:
    """CPU seconds that the descendants of this process have used."""
    times = [each.cpu_times() for each in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


async def _measure(question: Question, clients: int, seconds: float) -> list[Answer]:
    end = time.perf_counter() + seconds
    each = await asyncio.gather(*(_client(question, end) for _ in range(clients)))
    return [answer for answers in each for answer in answers]


async def _client(question: Question, end: float) -> list[Answer]:
    answers, request = [], question.request
    reader, writer = await asyncio.open_connection("127.0.0.1", question.port)
    while (start := time.perf_counter()) < end:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(size)
        answers.append(Answer(time.perf_counter() - start, b" 200 " in head))
    writer.close()
    return answers


if __name__ == "__main__":
    run_main(main)
