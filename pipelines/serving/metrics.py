"""Prometheus' metrics of the requests, of all processes on this machine together.

The processes share them in the directory that the environment variable `PROMETHEUS_MULTIPROC_DIR` names; it
has to be set before this module is imported.
"""

import os
import time

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BATCHES = Histogram(
    "singleshot_batch_size", "States that were computed together", buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)
_SECONDS = Histogram(
    "singleshot_request_seconds",
    "Time from a request's head to the end of its answer",
    ["route", "status"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)


class RequestTimer:
    """ASGI middleware that counts and times requests, by route and status."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._seconds: dict[tuple[str, int], Histogram] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            # A route's own path, without the names in it; clients could ask for any number of other paths.
            key = getattr(scope.get("route"), "path", "other"), status
            if key not in self._seconds:  # the library's own look-up takes 3 µs more
                self._seconds[key] = _SECONDS.labels(*key)
            self._seconds[key].observe(time.perf_counter() - start)


def exposition() -> Response:
    """All metrics, in Prometheus' text format."""
    registry: CollectorRegistry = REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
