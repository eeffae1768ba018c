"""A queue whose waiting requests are computed together."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
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
    """Computes items in batches, on the event loop itself.

    A batch consists of the items whose requests the event loop had at one time. So no item waits for a batch
    to fill, and batches grow under load, as requests arrive while a batch is computed. A thread of its own
    would take longer than most batches do: a thread that has computed waits up to 5 ms for Python's global
    lock, which the event loop holds meanwhile.
    """

    def __init__(self, compute: Callable[[Sequence[Item]], Sequence[Result]], max_batch_size: int) -> None:
        self._compute, self._max_batch_size = compute, max_batch_size
        self._waiting: deque[tuple[Item, asyncio.Future[Served[Result]]]] = deque()

    def __call__(self, item: Item) -> asyncio.Future[Served[Result]]:
        """The result of an item, or what its batch raised. A cancelled item that waits isn't computed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Served[Result]] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._run)
        self._waiting.append((item, future))
        return future

    def _run(self) -> None:
        batch: list[tuple[Item, asyncio.Future[Served[Result]]]] = []
        while self._waiting and len(batch) < self._max_batch_size:
            item, future = self._waiting.popleft()
            if not future.done():  # it is done if the request has timed out
                batch.append((item, future))
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        if not batch:
            return
        items, futures = zip(*batch, strict=True)
        try:
            results = self._compute(items)
        except Exception as error:
            for future in futures:
                future.set_exception(error)
            return
        for future, result in zip(futures, results, strict=True):
            future.set_result(Served(result, len(batch)))
