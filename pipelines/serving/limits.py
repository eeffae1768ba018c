"""Limits of requests: the size of the body, the time, and the number of requests at once."""

import asyncio
from collections import Counter

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.config.serving import ServiceConfig, ServingConfig

RETRY = {"Retry-After": "1"}
"""Headers of an answer 503."""


class Limits:
    """ASGI middleware. A GET passes: it has no body, and health checks have to be answered under any load."""

    def __init__(self, app: ASGIApp, config: ServingConfig) -> None:
        self.app = app
        self.timeout_s = config.timeout_s
        self.kinds = {"stylize": config.stylize, "act": config.act, "classify": config.classify}
        self.requests: Counter[str] = Counter()
        """Requests that are being computed, by kind."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it: 408 (not arrived in time), 413, 503 or 504 (no answer in time)."""
        posts = scope["type"] == "http" and scope["method"] == "POST"
        kind = scope["path"].removeprefix("/").partition("/")[0] if posts else ""
        if kind not in self.kinds:
            await self.app(scope, receive, send)
            return
        limits = self.kinds[kind]
        if int(Headers(scope=scope).get("content-length", "0")) > limits.max_body_mb * 1e6:
            await _refuse(413, _too_large(limits), scope, receive, send)
        elif self.requests[kind] >= limits.max_requests:
            error = f"{limits.max_requests} requests are in progress; try again"
            await _refuse(503, error, scope, receive, send)
        else:
            self.requests[kind] += 1
            try:
                await self._timed(limits, scope, receive, send)
            except ClientDisconnect:
                pass  # there is no client left to answer
            finally:
                self.requests[kind] -= 1

    async def _timed(self, limits: ServiceConfig, scope: Scope, receive: Receive, send: Send) -> None:
        received, arrived, started = 0, False, False

        async def counted() -> Message:
            nonlocal received, arrived
            message = await receive()
            received += len(message.get("body", b""))
            arrived = not message.get("more_body", False)
            if received > limits.max_body_mb * 1e6:
                raise HTTPException(413, _too_large(limits))
            return message

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with asyncio.timeout(self.timeout_s):
                await self.app(scope, counted, noted)
        except TimeoutError:
            if started:
                raise
            status, what = (504, "no answer") if arrived else (408, "the request did not arrive")
            await _refuse(status, f"{what} in {self.timeout_s:g} seconds", scope, receive, send)


def _too_large(limits: ServiceConfig) -> str:
    return f"the body is larger than {limits.max_body_mb:g} MB"


async def _refuse(status: int, error: str, scope: Scope, receive: Receive, send: Send) -> None:
    headers = RETRY if status == 503 else None
    await JSONResponse({"error": error}, status, headers)(scope, receive, send)
