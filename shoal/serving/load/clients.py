"""Clients of a service: questions over HTTP, and how long their answers take.

Connections are kept. Clients ask again as soon as they are answered (`by_clients`), or questions
come at random moments whether or not those before are answered (`at_rate`), as people do.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BUSY = (429, 503)  # a service that has too much to do
MOST_OPEN = 512  # connections; a question that finds all of them waiting is refused


@dataclass(frozen=True)
class LoadResult:
    """What a service answered under a load.

    questions  that were sent, with those that do not count
    answers    that count
    refusals   that count: the service had no time, or too many questions waited
    rate       answers per second
    p50, p99   milliseconds to an answer; nan: there was none
    """

    questions: int
    answers: int
    refusals: int
    rate: float
    p50: float
    p99: float


class ClientLoad:
    """Questions to one route of a service, asked again and again in a random order.

    address  such as http://127.0.0.1:8000
    path     such as /v1/recommend
    last     the body of the last answer
    """

    def __init__(self, address: str, path: str, questions: Sequence[Mapping[str, Any]]):
        self.host, _, port = address.removeprefix("http://").rpartition(":")
        self.port = int(port)
        self.messages = [self._message(path, question) for question in questions]
        self.last = b""
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._num_open = 0

    async def by_clients(
        self,
        clients: int,
        *,
        seconds: float = 0.0,
        warm_up: float = 0.0,
        requests: int | None = None,
    ) -> LoadResult:
        """So many clients, each with one question at a time.

        They ask for `warm_up` seconds that do not count and then for `seconds`; or so many
        `requests`, all of which count.
        """
        begin = time.perf_counter()
        counted, end = begin + warm_up, begin + warm_up + seconds
        if requests is not None:
            counted, end = begin, float("inf")
        most = sys.maxsize if requests is None else requests
        questions = refusals = 0
        times: list[float] = []

        async def client(number: int) -> None:
            nonlocal questions, refusals
            draw = random.Random(number)
            while questions < most and time.perf_counter() < end:
                questions += 1
                start = time.perf_counter()
                is_answered = await self._ask(draw)
                if start >= counted and is_answered:
                    times.append(time.perf_counter() - start)
                refusals += start >= counted and not is_answered

        try:
            await asyncio.gather(*[client(number) for number in range(clients)])
        finally:
            self._close()
        spent = seconds if requests is None else time.perf_counter() - begin
        return _result(questions, refusals, times, spent)

    async def at_rate(self, rate: float, requests: int, seed: int = 0) -> LoadResult:
        """So many questions, `rate` a second at random moments (a Poisson process).

        Times count from the moment at which a question was due.
        """
        draw = random.Random(seed)
        times: list[float] = []
        refusals = 0

        async def ask(due: float) -> None:
            nonlocal refusals
            if not self._free and self._num_open >= MOST_OPEN:
                refusals += 1
            elif await self._ask(draw):
                times.append(time.perf_counter() - due)
            else:
                refusals += 1

        begin = due = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(requests):
                    due += draw.expovariate(rate)
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                    tasks.create_task(ask(due))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self._close()
        return _result(requests, refusals, times, time.perf_counter() - begin)

    def _message(self, path: str, question: Mapping[str, Any]) -> bytes:
        body = json.dumps(question).encode()
        lines = [f"POST {path} HTTP/1.1", f"host: {self.host}", "content-type: application/json"]
        return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body

    async def _ask(self, draw: random.Random) -> bool:
        """Ask a question; whether it was answered, and not refused by a busy service."""
        if self._free:
            reader, writer = self._free.pop()
        else:
            self._num_open += 1
            reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(draw.choice(self.messages))
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            body = await reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise ConnectionError("it ended a connection without an answer") from None
        status = int(head.split()[1])
        if b"connection: close" in head:
            writer.close()
            self._num_open -= 1
        else:
            self._free.append((reader, writer))
        if status in BUSY:
            return False
        if status != 200:
            text = body.decode(errors="replace").strip()[:500]
            raise ValueError(f"the service answered {status}: {text}")
        self.last = body
        return True

    def _close(self) -> None:
        for _, writer in self._free:
            writer.close()
        self._free, self._num_open = [], 0


def _result(questions: int, refusals: int, times: list[float], seconds: float) -> LoadResult:
    times.sort()
    count = len(times)
    return LoadResult(
        questions=questions,
        answers=count,
        refusals=refusals,
        rate=count / seconds,
        p50=1e3 * times[count // 2] if count else float("nan"),
        p99=1e3 * times[int(count * 0.99)] if count else float("nan"),
    )
