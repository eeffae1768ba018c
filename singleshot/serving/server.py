"""Graphs over HTTP from this machine, by uvicorn's processes."""

import contextlib
import json
import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import uvicorn

from singleshot.errors import UserError, explained
from singleshot.io.onnx_model import Kind
from singleshot.serving.app import SETTINGS
from singleshot.serving.config import ServingConfig
from singleshot.serving.models import Model, find_models, of_kind

LAST_ANSWERS_S = 5
"""Time for requests in progress when the server is to end. `docker stop` waits for ten seconds."""


def serve_forever(config: ServingConfig, directory: Path, made: Sequence[Path] = ()) -> None:
    """Serve the graphs below a directory, and some others, until SIGINT or SIGTERM.

    Raises:
        UserError: a graph is damaged, or the port can't be used, or no process can start.
    """
    with until_interrupted():
        _serve_here(find_models(directory, made), config, directory, made)


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """A context that ends quietly with SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        yield
    print("ended", flush=True)


def _serve_here(
    models: Sequence[Model], config: ServingConfig, directory: Path, made: Sequence[Path]
) -> None:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with explained(f"{config.host}:{config.port} can't be used", "give another --host or --port"):
        socket.create_server((config.host, config.port), family=family).close()
    told, ended = threading.Event(), threading.Event()

    def tell() -> None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not (ended.wait(0.1) or told.is_set()):
            with contextlib.suppress(OSError):
                direct.open(f"{url(host, config.port)}/readyz").close()
                print(usage(models, [url(config.host, config.port)]), flush=True)
                told.set()

    settings = {"config": asdict(config), "directory": str(directory), "made": list(map(str, made))}
    os.environ[SETTINGS] = json.dumps(settings)
    threading.Thread(target=tell, daemon=True).start()
    uvicorn.run(
        "singleshot.serving.app:create_app",
        factory=True,
        host=config.host,
        port=config.port,
        workers=config.workers,
        ws="websockets-sansio",
        ws_max_size=1000,
        log_level="error",  # clients cause the messages below this level
        access_log=False,
        headers=[
            ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", "frame-ancestors 'none'"),
        ],
        limit_concurrency=config.max_connections,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=LAST_ANSWERS_S,
    )
    ended.set()
    if not told.is_set():
        raise UserError("the server ended before it answered; the reason is above")


def url(host: str, port: int) -> str:
    """The address of a server."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"  # brackets: IPv6


def usage(models: Sequence[Model], addresses: Sequence[str]) -> str:
    """What is served, and how a person tries it."""
    kinds: dict[str, Kind] = {"styles": "style", "policies": "policy", "classifiers": "classifier"}
    counts = ", ".join(f"{name}: {len(of_kind(models, kind))}" for name, kind in kinds.items())
    return (
        f"serving {counts} at {', '.join(addresses)}; Ctrl-C ends it\n"
        f"  {addresses[0]} is a page to try the networks, {addresses[0]}/docs describes the API"
    )
