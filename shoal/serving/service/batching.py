"""Micro-batching: requests that wait while others are computed are answered together.

No request waits for a batch to fill: while one batch is computed, new requests queue up; then all
of them, at most `most`, are the next batch. So one request alone is as quick as it can be, and many
at once share the work.

With a deadline, a request that would be answered later than that is refused when it comes: the
queue stays as short as those who wait can bear, however many ask.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

Work = Callable[[Sequence[Any]], Sequence[Any]]  # requests -> an answer or an exception for each


class Full(Exception):
    """More requests wait than may."""


class TooLate(Exception):
    """The answer would come after the deadline, in so many seconds."""

    def __init__(self, seconds: float):
        super().__init__(seconds)
        self.seconds = seconds


class BatchCost:
    """What a batch costs by its size: seconds = fixed + each × size, of the last few batches.

    >>> cost = BatchCost()
    >>> for size in (1, 5, 3): cost.add(size, seconds=0.2 + 0.1 * size)
    >>> round(cost.seconds(8), 6)
    1.0
    """

    def __init__(self) -> None:
        self._weight = self._sizes = self._seconds = self._squares = self._products = 0.0

    def add(self, size: int, seconds: float) -> None:
        """A batch of this size took so long; what was earlier counts less."""
        keep = 0.9
        self._weight = keep * self._weight + 1
        self._sizes = keep * self._sizes + size
        self._seconds = keep * self._seconds + seconds
        self._squares = keep * self._squares + size * size
        self._products = keep * self._products + size * seconds

    def seconds(self, size: int) -> float:
        """What a batch of this size is likely to take; 0 before there was any."""
        if not self._weight:
            return 0.0
        mean_size, mean_seconds = self._sizes / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - mean_size**2
        each = fixed = 0.0
        if spread > 1e-6:
            each = (self._products / self._weight - mean_size * mean_seconds) / spread
            fixed = mean_seconds - each * mean_size
        if spread <= 1e-6 or each < 0 or fixed < 0:  # too alike, or too noisy, for two numbers
            each, fixed = mean_seconds / mean_size, 0.0
        return fixed + each * size


class Batcher:
    """One queue of requests, and as many batches at a time as there are threads to answer them.

    deadline: seconds; a request whose answer would take longer is refused at once. None: none is.
    """

    def __init__(
        self,
        work: Work,
        most: int,
        waiting: int,
        threads: ThreadPoolExecutor,
        together: int = 1,
        deadline: float | None = None,
    ):
        self.work = work
        self.most = most
        self.waiting = waiting
        self.threads = threads
        self.together = together
        self.deadline = deadline
        self.cost = BatchCost()
        self.batches = self.requests = self.too_late = 0
        self._queue: list[tuple[Any, asyncio.Future]] = []
        self._running: set[asyncio.Task] = set()
        self._begun: dict[int, tuple[float, int]] = {}  # batch -> when it began, and its size

    def expected_seconds(self) -> float:
        """How long a request that comes now is likely to wait for its answer."""
        if len(self._running) < self.together:
            return 0.0  # alone or not, it is begun at once
        now = time.monotonic()
        ends = [self.cost.seconds(size) - (now - begun) for begun, size in self._begun.values()]
        free = max(0.0, min(ends, default=0.0))
        whole, rest = divmod(len(self._queue) + 1, self.most)
        queued = whole * self.cost.seconds(self.most) + (self.cost.seconds(rest) if rest else 0.0)
        return free + queued / (1 if not whole else self.together)

    async def ask(self, request: Any) -> Any:
        """The answer to one request."""
        if len(self._queue) >= self.waiting:
            raise Full
        if self.deadline is not None and (seconds := self.expected_seconds()) > self.deadline:
            self.too_late += 1
            raise TooLate(seconds)
        future = asyncio.get_running_loop().create_future()
        self._queue.append((request, future))
        if len(self._running) < self.together:
            self._running.add(asyncio.create_task(self._run()))
        return await future

    async def _run(self) -> None:
        """Answer until nobody waits."""
        try:
            await self._answer_all()
        finally:
            # At once, not by a callback of the task: who asks before that would wait for a task
            # that has looked at the queue for the last time.
            self._running.discard(cast(asyncio.Task, asyncio.current_task()))

    async def _answer_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            batch, self._queue = self._queue[: self.most], self._queue[self.most :]
            batch = [one for one in batch if not one[1].done()]  # clients that left get no answer
            if not batch:
                continue
            self.batches += 1
            self.requests += len(batch)
            requests = [request for request, _ in batch]
            number, begun = self.batches, time.monotonic()
            self._begun[number] = begun, len(batch)
            try:
                answers = await loop.run_in_executor(self.threads, self._answers, requests)
            finally:
                del self._begun[number]
            self.cost.add(len(batch), time.monotonic() - begun)
            for (_, future), answer in zip(batch, answers):
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _answers(self, requests: list[Any]) -> Sequence[Any]:
        try:
            return self.work(requests)
        except Exception as error:
            if len(requests) == 1:
                return [error]
            # A wrong request must not fail the others of its batch.
            return [answer for one in requests for answer in self._answers([one])]
