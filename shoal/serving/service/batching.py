"""Micro-batching: requests that wait while others are computed are answered together.

No request waits for a batch to fill: while one batch is computed, new requests queue up; then all
of them, at most `most`, are the next batch. So one request alone is as quick as it can be, and many
at once share the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Work = Callable[[Sequence[Any]], Sequence[Any]]  # requests -> an answer or an exception for each


class Full(Exception):
    """More requests wait than may."""


class Batcher:
    """One queue of requests, and as many batches at a time as there are threads to answer them."""

    def __init__(
        self, work: Work, most: int, waiting: int, threads: ThreadPoolExecutor, together: int = 1
    ):
        self.work = work
        self.most = most
        self.waiting = waiting
        self.threads = threads
        self.together = together
        self.batches = self.requests = 0
        self._queue: list[tuple[Any, asyncio.Future]] = []
        self._running: set[asyncio.Task] = set()

    async def ask(self, request: Any) -> Any:
        """The answer to one request."""
        if len(self._queue) >= self.waiting:
            raise Full
        future = asyncio.get_running_loop().create_future()
        self._queue.append((request, future))
        if len(self._running) < self.together:
            task = asyncio.create_task(self._run())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            batch, self._queue = self._queue[: self.most], self._queue[self.most :]
            batch = [one for one in batch if not one[1].done()]  # clients that left get no answer
            if not batch:
                continue
            self.batches += 1
            self.requests += len(batch)
            requests = [request for request, _ in batch]
            answers = await loop.run_in_executor(self.threads, self._answers, requests)
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
