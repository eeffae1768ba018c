"""What every request has to pass, whatever it asks for: its limits, and the address that it names."""

import asyncio
import contextlib
import functools
import ipaddress
import os
import socket
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from prometheus_client import Histogram
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from singleshot.serving.config import ServingConfig

DUE = "singleshot.due"
"""Key of a scope: when :func:`time.monotonic` says that the request has to be answered."""
_SECONDS = Histogram(
    "singleshot_request_seconds",
    "Time from a request's head to the end of its answer",
    ["process", "route", "status"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)


class Guard:
    """ASGI middleware that limits the size and time of requests, checks whom they address, and times them."""

    def __init__(self, app: ASGIApp, config: ServingConfig) -> None:
        self.app, self._config = app, config
        self._others = set(map(str.lower, config.names))
        self._names = {"localhost", config.host, socket.gethostname().lower()} | self._others
        # The two look-ups without a cache take 12 µs more of each request.
        self._is_ours = functools.lru_cache(maxsize=100)(self._names_us)
        self._observe = functools.lru_cache(maxsize=1000)(_SECONDS.labels)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        root, path = self._config.root_path, scope["path"]
        if path != root and not path.startswith(f"{root}/"):  # the proxy removed it, or left it there
            path = root + path
        # HEAD becomes GET, of whose answer the server sends the head alone.
        method = {"method": "GET"} if scope.get("method") == "HEAD" else {}
        scope = {**scope, "root_path": root, "path": path, **method}
        refused = self._refusal(scope)
        if refused and scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # before it was accepted: 403
        elif refused:
            await refused(scope, receive, send)
        elif scope["type"] == "websocket":
            await self.app(scope, receive, send)
        else:
            await self._timed(scope, receive, send)

    async def _timed(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status = time.monotonic(), 0
        scope[DUE] = start + self._config.timeout_s

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            async with asyncio.timeout(self._config.timeout_s):
                await self.app(scope, receive, noted)
        except TimeoutError:
            if not status:
                await _error(504, f"no answer in {self._config.timeout_s:g} seconds")(scope, receive, noted)
        except asyncio.CancelledError:  # uvicorn ends, and waits no longer
            if not status:
                await _error(503, "the server ends; try again")(scope, receive, noted)
        except ClientDisconnect:
            pass  # there is no client left to answer
        finally:
            # A route's own path, without the names in it; clients could ask for any number of other paths.
            route = getattr(scope.get("route"), "path", "other")
            self._observe(os.getpid(), route, status or 500).observe(time.monotonic() - start)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = dict(scope["headers"])
        host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin")
        if not self._is_ours(host):
            return _error(403, f"this server is not called {host!r}; give --name, or add it to serving.names")
        if scope["type"] == "websocket":
            page = origin.decode("latin-1").partition("//")[2] if origin else host  # programs send no Origin
            if page != host and _name_of(page) not in self._others:
                return _error(
                    403, f"pages of {page!r} may not watch; give --name, or add it to serving.names"
                )
            return None
        if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            return _error(415, "the body is compressed; send it without Content-Encoding")
        return None

    def _names_us(self, host: str) -> bool:
        """Whether a header `Host` may mean this server: a foreign page can have its own name lead here."""
        name = _name_of(host)
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return name in self._names


class Bodies:
    """The bodies of requests, counted as they come: all that are in memory are as large as `several`."""

    def __init__(self, most: int, several: int) -> None:
        self._most, self._together, self._held = most, several * most, 0

    @contextlib.asynccontextmanager
    async def __call__(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request, which counts until the context ends.

        Raises:
            HTTPException: 413 if it is too large, 503 if all together are.
        """
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                self._held += len(part)
                if len(body) > self._most:
                    raise HTTPException(413, f"the body is larger than {self._most / 1e6:g} MB")
                if self._held > self._together:
                    raise HTTPException(503, "other bodies are in memory; try again", {"Retry-After": "1"})
            yield bytes(body)
        finally:
            self._held -= len(body)


def _name_of(address: str) -> str:
    with contextlib.suppress(ValueError):
        return urlsplit(f"//{address}").hostname or ""
    return ""


def _error(status: int, error: str) -> JSONResponse:
    return JSONResponse({"error": error}, status)
