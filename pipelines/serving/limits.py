"""What a request may cost: bytes, seconds, and a place among those in work."""

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

RETRY = {"Retry-After": "1"}
"""Of an answer 503."""


class Limits:
    """ASGI middleware. A GET passes: it has no body, and health has to be answered under any load."""

    def __init__(self, app: ASGIApp, max_requests: int, max_body_bytes: int, timeout_s: float) -> None:
        self.app = app
        self.max_requests = max_requests
        self.max_body_bytes = max_body_bytes
        self.timeout_s = timeout_s
        self.requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it: 413, 408 (it doesn't arrive), 503, 504 (no answer in time)."""
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD"}:
            await self.app(scope, receive, send)
        elif int(Headers(scope=scope).get("content-length", "0")) > self.max_body_bytes:
            await _refuse(413, self._too_large(), scope, receive, send)
        elif self.requests >= self.max_requests:
            error = f"{self.max_requests} requests are in work; try again"
            await _refuse(503, error, scope, receive, send)
        else:
            self.requests += 1
            try:
                await self._timed(scope, receive, send)
            finally:
                self.requests -= 1

    async def _timed(self, scope: Scope, receive: Receive, send: Send) -> None:
        received, arrived, started = 0, False, False

        async def counted() -> Message:
            nonlocal received, arrived
            message = await receive()
            received += len(message.get("body", b""))
            arrived = not message.get("more_body", False)
            if received > self.max_body_bytes:
                raise HTTPException(413, self._too_large())
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

    def _too_large(self) -> str:
        return f"the body is larger than {self.max_body_bytes} bytes"


async def _refuse(status: int, error: str, scope: Scope, receive: Receive, send: Send) -> None:
    headers = RETRY if status == 503 else None
    await JSONResponse({"error": error}, status, headers)(scope, receive, send)
