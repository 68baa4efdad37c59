"""Roster: the workers of a run as a server knows them, and what each of them ordered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shoal.ps.server.answers import Request
from shoal.ps.wire import Header, WireError

MOST_ORDERS = 1000  # that are remembered of a worker


@dataclass
class Worker:
    """What a server knows of a worker."""

    session: int
    host: str
    heard: float  # when it was last heard of
    step: int = 0  # pushes that came
    answer: list[Any] | None = None  # to its last push, once it is given
    done: bool = False
    lost: str = ""  # why it was given up, while others go on
    orders: dict[int, bool] = field(default_factory=dict)  # number of the last ones -> carried out
    ring: Any = None  # memory that its rows may go through: shared.py


class Roster:
    """The workers that said hello."""

    def __init__(self, timeout: float):
        self.timeout = timeout  # seconds of silence after which a worker counts as lost
        self.workers: dict[int, Worker] = {}
        self.looked = time.monotonic()  # when the workers were last looked after

    def __getitem__(self, number: int) -> Worker:
        return self.workers[number]

    def __len__(self) -> int:
        return len(self.workers)

    def register(self, header: Header, host: str) -> bool:
        """Take up a worker that says hello, as often as it does; whether it is new."""
        known = self.workers.get(header.worker)
        if known is None:
            self.workers[header.worker] = Worker(header.session, host, time.monotonic())
        elif known.session != header.session:
            raise WireError(
                f"there is a worker {header.worker} already, on host {known.host}: every worker "
                "needs a number of its own"
            )
        return known is None

    def hear(self, header: Header) -> Worker:
        """The worker that a message is from: it lives."""
        worker = self.workers.get(header.worker)
        if worker is None or worker.session != header.session:
            raise WireError(f"worker {header.worker} is not known here; it must say hello first")
        if worker.lost:
            raise WireError(f"{worker.lost}; start another worker in its place")
        worker.heard = time.monotonic()
        return worker

    def find_silent(self) -> str | None:
        """Who went silent, if anybody did."""
        return next((why for _, why in self._silent()), None)

    def give_up_silent(self) -> list[tuple[int, str]]:
        """Those who went silent, and what is told of it: they are workers no more."""
        found = list(self._silent())
        for number, why in found:
            self.workers[number].lost, self.workers[number].ring = why, None
        return found

    @property
    def alive(self) -> list[int]:
        """The workers that take part now."""
        return [k for k, one in self.workers.items() if not one.done and not one.lost]

    def _silent(self) -> Iterator[tuple[int, str]]:
        now = time.monotonic()
        busy, self.looked = now - self.looked > self.timeout / 2, now
        if busy:  # what came meanwhile may not have been handed over yet
            return
        for number in self.alive:
            worker = self.workers[number]
            silent = now - worker.heard
            if silent > self.timeout:
                yield (
                    number,
                    f"worker {number} on host {worker.host} has been silent for {silent:.0f} s: it "
                    "died, or the network to it is cut",
                )

    def find_done(self) -> int | None:
        """A worker that is done."""
        return next((number for number, one in self.workers.items() if one.done), None)

    def all_done(self, count: int) -> bool:
        """Whether so many workers came, and all of them are done."""
        return len(self.workers) >= count and all(one.done for one in self.workers.values())

    def slowest(self, count: int) -> int:
        """The step of the worker furthest behind; 0 until so many have come."""
        at_work = [worker.step for worker in self.workers.values() if not worker.done]
        return min(at_work, default=0) if len(self.workers) == count else 0

    # ---- orders: carried out once, however often they come ---------------------------------------

    def order(self, request: Request, carry_out: Callable[[Request], None]) -> bool:
        """Carry out an order that is new; whether it was carried out before.

        What is asked again because its answer was late or lost may come at any later time.
        """
        orders, number = self._orders(request), request.header.sequence
        if number in orders:
            return orders[number]
        orders[number] = False
        try:
            carry_out(request)
        except Exception:  # any: it is raised again, and whoever answers tells of it
            # It must not stay among those under way: a worker that asks again would wait for ever.
            self.forget_order(request)
            raise
        while len(orders) > MOST_ORDERS:
            del orders[next(iter(orders))]
        return False

    def mark_carried_out(self, request: Request) -> None:
        self._orders(request)[request.header.sequence] = True

    def forget_order(self, request: Request) -> None:
        self._orders(request).pop(request.header.sequence, None)

    def _orders(self, request: Request) -> dict[int, bool]:
        return self.workers[request.header.worker].orders
