"""Answers per second and latency: `python -m benchmarks.serving`, with clients that do not pause.

Actions are also requested from a plain FastAPI server with onnxruntime (`plain_server.py`), with as many
processes. All servers share one machine with the clients, which are coroutines of one process. Servers are
asked in turn, in rounds, and each row has the round whose number of answers is the median, so that other
work on the machine slows all of them alike. CPU time is that of the servers alone: it depends less on what
else the machine does. The server's own address is that of params.yaml.
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
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import psutil
import uvloop
from PIL import Image
from skimage.data import chelsea

from benchmarks.command import positive, run_main
from benchmarks.paired import heading
from pipelines.config.params import load_config
from pipelines.stages import GRAPHS
from singleshot.errors import UserError
from singleshot.serving.models import Model, find_models

CLIENTS = (1, 8, 32)
ROUNDS = 5
PICTURE_PX = 256
ALGORITHMS = ("bc", "bcq")
PATIENCE_S = 300


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
class Round:
    """The answers of a server in some time."""

    milliseconds: list[float]
    """Of the good answers."""
    refused: int
    elapsed: float
    """Seconds until the last answer."""
    cpu: float
    """Seconds of CPU that the servers took."""

    @property
    def rate(self) -> float:
        """Good answers per second."""
        return len(self.milliseconds) / self.elapsed


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=positive(float), default=5.0, help="seconds for each row")
    seconds = parser.parse_args().seconds
    asked = _asked(find_models(GRAPHS))
    config = load_config().serving
    print(heading("onnxruntime", "uvicorn", "fastapi"))
    print(f"{config.workers} processes a server. Load before: {psutil.getloadavg()[0]:.1f}.\n")
    print("| request | server | clients | answers/s | p50 ms | p99 ms | refused | CPU ms an answer |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    plain = "-m uvicorn --factory benchmarks.plain_server:make_app --log-level error --port"
    with _started("-m pipelines serve", config.port, "/readyz"):
        for model in asked:
            questions = [_ours(model, config.port)]
            if model.card.kind != "policy":
                _print_rows(questions, seconds)
                continue
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            command = f"{plain} {port} --workers {config.workers}"
            samples = str(model.card.details.get("samples", 1))
            with _started(command, port, "/docs", GRAPH=str(model.path), SAMPLES=samples):
                body = json.dumps({"state": _state(model)}).encode()
                questions.append(Question(model.name, "FastAPI, onnxruntime", port, "/act", body))
                _print_rows(questions, seconds)


def _asked(models: list[Model]) -> list[Model]:
    """A dense and a pruned policy of each algorithm, a style, and a classifier if there is one."""
    chosen: dict[str, Model] = {}
    for model in models:
        pruned = "pruned" if model.card.sparsity else "dense"
        policy = model.card.kind == "policy"
        chosen.setdefault(f"{model.card.details['algorithm']} {pruned}" if policy else model.card.kind, model)
    wanted = {"style", *(f"{name} {kind}" for name in ALGORITHMS for kind in ("dense", "pruned"))}
    if missing := wanted - chosen.keys():  # a classifier may be missing: random ones aren't served
        names = ", ".join(sorted(missing))
        raise UserError(f"{GRAPHS}: no graph of {names}; export some with `dvc repro export`")
    # Pictures first: their processes import PyTorch meanwhile, which would slow the first actions.
    return sorted(chosen.values(), key=lambda model: model.card.kind == "policy")


def _state(model: Model) -> list[float]:
    return [0.1] * next(int(each.shape[1]) for each in model.card.inputs if each.name == "state")


def _ours(model: Model, port: int) -> Question:
    if model.card.kind == "policy":
        body = json.dumps({"state": _state(model), "policy": model.name}).encode()
        return Question(model.name, "serve", port, f"/act/{model.card.details['environment']}", body)
    photo = io.BytesIO()
    Image.fromarray(chelsea()).resize((PICTURE_PX, PICTURE_PX)).save(photo, "JPEG", quality=95)  # type: ignore[no-untyped-call]
    path = "/classify" if model.card.kind == "classifier" else f"/stylize/{model.name}"
    return Question(f"{path}, {PICTURE_PX} px", "serve", port, path, photo.getvalue(), "image/jpeg")


@contextlib.contextmanager
def _started(command: str, port: int, path: str, **environment: str) -> Iterator[None]:
    """A server that answers; it and its child processes end with the context."""
    with subprocess.Popen(
        [sys.executable, *command.split()],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            end = time.monotonic() + PATIENCE_S
            while process.poll() is None and time.monotonic() < end:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").close()
                    break
                time.sleep(0.2)
            else:
                raise UserError(f"`python {command}` does not answer at port {port}; run it to see why")
            yield
        finally:
            process.terminate()


def _print_rows(questions: list[Question], seconds: float) -> None:
    for clients in CLIENTS:
        for question in questions:
            _round(question, clients, 1.0)  # warm-up
        rounds = [
            [_round(question, clients, seconds / ROUNDS) for question in questions] for _ in range(ROUNDS)
        ]
        for question, taken in zip(questions, zip(*rounds, strict=True), strict=True):
            median = sorted(taken, key=lambda each: each.rate)[ROUNDS // 2]
            p50, p99 = np.percentile(median.milliseconds, (50, 99))
            cpu = 1000 * median.cpu / len(median.milliseconds)
            print(
                f"| {question.what} | {question.server} | {clients} | {median.rate:.0f} | {p50:.2f} | "
                f"{p99:.1f} | {median.refused} | {cpu:.2f} |",
                flush=True,
            )


def _round(question: Question, clients: int, seconds: float) -> Round:
    before, start = _servers_cpu(), time.perf_counter()
    answers = uvloop.run(_measure(question, clients, seconds))
    # Longer than `seconds`: clients wait for the answers to all requests that have begun.
    elapsed, cpu = time.perf_counter() - start, _servers_cpu() - before
    good = [1000 * taken for taken, is_good in answers if is_good]
    return Round(good, len(answers) - len(good), elapsed, cpu)


def _servers_cpu() -> float:
    """CPU seconds that the descendants of this process have used."""
    times = [each.cpu_times() for each in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


async def _measure(question: Question, clients: int, seconds: float) -> list[tuple[float, bool]]:
    end = time.perf_counter() + seconds
    each = await asyncio.gather(*(_client(question, end) for _ in range(clients)))
    return [answer for answers in each for answer in answers]


async def _client(question: Question, end: float) -> list[tuple[float, bool]]:
    """Seconds of each answer, and whether it is good."""
    answers, request = [], question.request
    reader, writer = await asyncio.open_connection("127.0.0.1", question.port)
    while (start := time.perf_counter()) < end:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(size)
        answers.append((time.perf_counter() - start, b" 200 " in head))
    writer.close()
    return answers


if __name__ == "__main__":
    run_main(main)
