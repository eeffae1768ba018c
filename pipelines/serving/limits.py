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
    """The ASGI application of one route, with its limits.

    All requests of a route have the same time, so they are due in the order in which they came, and one timer
    serves them all. A timer for each, as of `asyncio.timeout`, takes a tenth of an action's time.
    """

    def __init__(self, app: ASGIApp, limits: ServiceConfig, timeout_s: float) -> None:
        self.app, self.limits, self.timeout_s = app, limits, timeout_s
        self._due: dict[asyncio.Task[object], float] = {}
        """When each request has to be answered: those that are being read or computed, or wait."""
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on.

        Raises:
            HTTPException: 408 (it did not arrive in time), 503, or 504 (no answer in time).
        """
        if len(self._due) >= self.limits.max_requests:
            error = f"{self.limits.max_requests} requests are in progress; try again"
            raise HTTPException(503, error, RETRY)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task
        self._due[task] = loop.time() + self.timeout_s
        if self._timer is None:
            self._timer = loop.call_later(self.timeout_s, self._end_late)
        try:
            await self.app(scope, receive, send)
        except asyncio.CancelledError:
            if task in self._due:
                raise
            task.uncancel()
            arrived = HAS_ARRIVED in scope
            status, what = (504, "no answer") if arrived else (408, "the request did not arrive")
            raise HTTPException(status, f"{what} in {self.timeout_s:g} seconds") from None
        except ClientDisconnect:
            pass  # there is no client left to answer
        finally:
            self._due.pop(task, None)

    def _end_late(self) -> None:
        """Cancel the requests whose time is up, and look again when the next one's is."""
        loop = asyncio.get_running_loop()
        for task, due in list(self._due.items()):
            if due > loop.time():
                self._timer = loop.call_at(due, self._end_late)
                return
            del self._due[task]
            task.cancel()
        self._timer = None
