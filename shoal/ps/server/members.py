"""Members: the workers of a run as a server knows them.

A worker that goes silent ends the run. Where workers join and leave it is given up: its
later requests are refused, and its batches, of which server 0 keeps a ledger, go to others. Such a
run ends when the chief ends it, and fails when no worker is left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shoal.ps.server.answers import Answers, Request
from shoal.ps.server.ledger import BatchRequest, Ledger, Turn
from shoal.ps.wire import ANY_NUMBER, MOST_WORKERS, MessageHeader, WireError, json_frame

log = logging.getLogger("shoal")


@dataclass
class Worker:
    """A server's record of a worker."""

    session: int
    host: str
    heard: float  # when its last message came
    step: int = 0  # pushes that came
    answer: list[Any] | None = None  # to its last push, once it is given
    done: bool = False
    lost: str = ""  # why it was given up, while others continue
    orders: dict[int, bool] = field(default_factory=dict)  # number of the last ones -> carried out


class Members(dict[int, Worker]):
    """The workers that said hello to a server, by number."""

    def __init__(self, index: int, answers: Answers, timeout: float):
        super().__init__()
        self.index, self.answers = index, answers
        self.timeout = timeout  # seconds of silence after which a worker counts as lost
        self.looked = time.monotonic()  # when the workers were last looked after
        self.elastic = False  # whether workers may join and leave; set by the first hello
        self.ledger = Ledger()  # of server 0; that of the others is empty
        self._over = False  # a worker said so
        self._alone_since: float | None = None  # when the last worker went

    def register(self, header: MessageHeader, host: str) -> bool:
        """Register a worker that says hello, also repeatedly; True if it is new."""
        member = self.get(header.worker)
        if member is None:
            self[header.worker] = Worker(header.session, host, time.monotonic())
            self._alone_since = None
            if self.elastic and self.index == 0:
                log.info("worker %d on host %s joins", header.worker, host)
        elif member.session != header.session:
            raise WireError(
                f"there is a worker {header.worker} already, on host {member.host}: every worker "
                "needs a number of its own"
            )
        return member is None

    def hear(self, header: MessageHeader) -> None:
        """The worker that a message is from lives, if it is one of this run."""
        worker = self.get(header.worker)
        if worker is None or worker.session != header.session:
            raise WireError(f"worker {header.worker} is not known here; it must say hello first")
        if worker.lost:
            raise WireError(f"{worker.lost}; start another worker in its place")
        worker.heard = time.monotonic()

    @property
    def alive(self) -> list[int]:
        """The workers that take part now."""
        return [number for number, one in self.items() if not one.done and not one.lost]

    def silent(self) -> Iterator[tuple[int, str]]:
        """Yield workers that went silent since the last look, with a message about each."""
        now = time.monotonic()
        busy, self.looked = now - self.looked > self.timeout / 2, now
        if busy:  # what came meanwhile may not have been handed over yet
            return
        for number in self.alive:
            worker = self[number]
            silent = now - worker.heard
            if silent > self.timeout:
                yield (
                    number,
                    f"worker {number} on host {worker.host} has been silent for {silent:.0f} s: it "
                    "died, or the network to it is cut",
                )

    def find_done(self) -> int | None:
        """A worker that is done."""
        return next((number for number, one in self.items() if one.done), None)

    def all_done(self, count: int) -> bool:
        """Whether so many workers came, and all of them are done."""
        return len(self) >= count and all(one.done for one in self.values())

    def slowest(self, count: int) -> int:
        """The step of the worker furthest behind; 0 until so many have come."""
        at_work = [worker.step for worker in self.values() if not worker.done]
        return min(at_work, default=0) if len(self) == count else 0

    # ---- elastic workers ------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the run is over and all workers have left."""
        return self.elastic and self._nothing_left and not self.alive

    @property
    def _nothing_left(self) -> bool:
        return self._over or self.ledger.over

    def number_of(self, header: MessageHeader) -> int:
        """The number of a worker that says hello; server 0 chooses numbers of elastic workers."""
        for number, worker in self.items():
            if worker.session == header.session:
                return number
        if self._nothing_left:
            raise WireError("the run is over: there is nothing left to do")
        if header.worker != ANY_NUMBER:
            return header.worker
        if self.index:
            raise WireError(f"server 0 gives workers their numbers, and this is {self.index}")
        number = len(self)
        if number >= MOST_WORKERS:
            raise WireError(f"{number} workers have come already, as many as there may be")
        return number

    def remove_worker(self, number: int, over: bool) -> None:
        """Remove a worker that said goodbye; over: nothing is left to do."""
        self._over = self._over or over
        self._reclaim(number)
        if self.index == 0 and not over:
            log.info("worker %d on host %s leaves", number, self[number].host)

    def lease(self, request: Request) -> None:
        """Answer a worker that asks for its next lease."""
        self._check_keeper()
        batch_request = request.read(BatchRequest, "a LEASE that is not right", 1 << 20)
        answer = self.ledger.ask(request.header.worker, batch_request, self.alive)
        self.answers.reply(request, [json_frame(answer)])

    def turn(self, request: Request) -> None:
        """Handle a request of the chief that sets the next turn."""
        self._check_keeper()
        turn = request.read(Turn, "a TURN that is not right", 1 << 20)
        self.ledger.begin_turn(request.header.worker, turn)

    def look_after(self) -> str | None:
        """The reason for a failed run, if a worker went silent; None otherwise.

        Elastic runs give up the worker instead, and fail when no worker is left for long.
        """
        silent = list(self.silent())
        if not self.elastic:
            return silent[0][1] if silent else None
        for number, why in silent:
            self[number].lost = why
            if self.index == 0:
                log.warning("%s", why)
            self._reclaim(number)
        if self.alive or not self or self.over:
            self._alone_since = None
            return None
        self._alone_since = self._alone_since or time.monotonic()
        if time.monotonic() - self._alone_since <= self.timeout:
            return None
        return "all workers have left or were lost, and none has joined since"

    def _reclaim(self, number: int) -> None:
        back = self.ledger.give_back(number)
        if back is not None:
            first, last = back
            log.info("batches %d to %d of worker %d go to others", first, last - 1, number)

    def _check_keeper(self) -> None:
        if not self.elastic:
            raise WireError("the workers of this run do not come and go: nothing is lent to them")
        if self.index:
            raise WireError(f"server 0 keeps the ledger of this run, and this is {self.index}")
