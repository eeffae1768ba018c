"""A queue whose waiting requests are computed together."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Served(Generic[Result]):
    """A result, with the size of its batch."""

    value: Result
    batch: int
    """Number of requests that were computed together, this one included."""


class BatchQueue(Generic[Item, Result]):
    """Computes items in batches, in a thread of its own, so that the event loop goes on meanwhile.

    A batch consists of the items that arrived while the previous batch was computed. So no item waits for a
    batch to fill, and batches grow under load.
    """

    def __init__(self, compute: Callable[[Sequence[Item]], Sequence[Result]], max_batch_size: int) -> None:
        self._compute, self._max_batch_size = compute, max_batch_size
        self._waiting: deque[tuple[Item, asyncio.Future[Served[Result]]]] = deque()
        self._thread = ThreadPoolExecutor(1)
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Served[Result]:
        """The result of an item; raises what its batch raised. A cancelled item that waits isn't computed."""
        future: asyncio.Future[Served[Result]] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next():
            items, futures = zip(*batch, strict=True)
            try:
                results = await loop.run_in_executor(self._thread, self._compute, items)
            except Exception as error:
                for future in futures:
                    if not future.done():
                        future.set_exception(error)
                continue
            for future, result in zip(futures, results, strict=True):
                if not future.done():
                    future.set_result(Served(result, len(batch)))
        self._running = None

    def _next(self) -> list[tuple[Item, asyncio.Future[Served[Result]]]]:
        batch: list[tuple[Item, asyncio.Future[Served[Result]]]] = []
        while self._waiting and len(batch) < self._max_batch_size:
            item, future = self._waiting.popleft()
            if not future.done():  # it is done if the request has timed out
                batch.append((item, future))
        return batch
