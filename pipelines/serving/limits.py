"""Limits of requests: the time, and the number of requests at once. `bodies` limits the size of the body."""

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from pipelines.config.serving import ServiceConfig
from pipelines.serving.bodies import HAS_ARRIVED

RETRY = {"Retry-After": "1"}
"""Headers of an answer 503."""


class Limits:
    """The ASGI application of one route, with its limits."""

    def __init__(self, app: ASGIApp, limits: ServiceConfig, timeout_s: float) -> None:
        self.app, self.limits, self.timeout_s = app, limits, timeout_s
        self.requests = 0
        """Number of requests that are being read or computed, or wait."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on.

        Raises:
            HTTPException: 408 (it did not arrive in time), 503, or 504 (no answer in time).
        """
        if self.requests >= self.limits.max_requests:
            error = f"{self.limits.max_requests} requests are in progress; try again"
            raise HTTPException(503, error, RETRY)
        self.requests += 1
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.app(scope, receive, send)
        except TimeoutError:
            arrived = HAS_ARRIVED in scope
            status, what = (504, "no answer") if arrived else (408, "the request did not arrive")
            raise HTTPException(status, f"{what} in {self.timeout_s:g} seconds") from None
        except ClientDisconnect:
            pass  # there is no client left to answer
        finally:
            self.requests -= 1
