"""Ledger: which batches are lent to which worker, where workers join and leave.

Server 0 keeps it. Training goes by turns: a turn is some batches of an epoch, in the order that is
a pure function of seed and epoch. They are lent in pieces; what a worker that is lost, or leaves,
had not done is lent again. When all are done, one worker, the chief, has the floor: it evaluates
and saves, and sets the next turn. If it is lost meanwhile, another worker has the floor.

A lease says who computes a batch, not whether it counts: each server takes the gradients of a batch
once, however often they come (`Applied`). So a batch that was lent twice still counts once.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from shoal.config.section import Section
from shoal.ps.wire import WireError

MOST = 1 << 53  # batches, steps: whole numbers that JSON keeps


class Turn(Section):
    """The next work of all workers: batches first to last - 1 of an epoch."""

    number: int = Field(ge=1, le=MOST)
    epoch: int = Field(0, ge=0, le=MOST)
    first: int = Field(0, ge=0, le=MOST)
    last: int = Field(0, ge=0, le=MOST)
    skip: int = Field(0, ge=0, le=MOST, description="samples before batch 0")
    step: int = Field(0, ge=0, le=MOST, description="steps of the run before batch `first`")
    grain: int = Field(1, ge=1, le=1 << 20, description="batches that are lent together")
    notes: dict[str, Any] = Field(default_factory=dict, description="the chief's, for the next one")
    over: bool = Field(False, description="nothing is left to do")


class BatchRequest(Section):
    """A worker's request for batches."""

    lease: int = Field(0, ge=0, le=MOST, description="the one that it has, as far as it knows")
    done: int = Field(0, ge=0, le=MOST, description="batches before this of it are everywhere")
    losses: int = Field(0, ge=0, le=MOST, description="batches whose losses are summed")
    loss: float = 0.0
    wants: bool = Field(True, description="another one; else it only gives back what it has")
    stop: bool = Field(False, description="the turn is to end with what is lent")
    knows: bool = Field(True, description="what the workers of this run agreed on")


@dataclass
class Loan:
    """Batches first to last - 1 of a turn that a worker has."""

    number: int
    first: int
    last: int


class Ledger:
    """Turns, leases, and who has the floor."""

    def __init__(self) -> None:
        self.turn: Turn | None = None  # None: no turn is set yet
        self.chief: int | None = None
        self.leases: dict[int, Loan] = {}  # worker -> what it has
        self._num_leases = 0  # leases so far
        self._back: list[tuple[int, int]] = []  # batches that were given back
        self._next = self._last = 0  # batches that no worker has had
        self._stops = False  # the whole run got a signal to stop
        self._loss, self._losses, self._begun = 0.0, 0, time.monotonic()

    @property
    def over(self) -> bool:
        return self.turn is not None and self.turn.over

    @property
    def all_done(self) -> bool:
        """Whether every batch of the turn was done."""
        return self._next >= self._last and not self._back and not self.leases

    def begin_turn(self, worker: int, turn: Turn) -> None:
        """Begin the next turn, which the chief sets."""
        if worker != self.chief:
            raise WireError(f"worker {worker} says what comes next, and {self.chief} has the floor")
        number = 0 if self.turn is None else self.turn.number
        if turn.number != number + 1 or not self.all_done:
            raise WireError(f"turn {turn.number}, and turn {number} is under way")
        if turn.last < turn.first:
            raise WireError(f"a turn of batches {turn.first} to {turn.last}")
        self.turn, self._next, self._last = turn, turn.first, turn.last
        self._loss, self._losses, self._begun = 0.0, 0, time.monotonic()

    def ask(self, worker: int, batch_request: BatchRequest, alive: Sequence[int]) -> dict[str, Any]:
        """The next lease of a worker; the same answer for a repeated request."""
        loan = self.leases.get(worker)
        if loan is not None and loan.number == batch_request.lease:
            self.advance(worker, loan.number, batch_request.done)
            self._loss, self._losses = (
                self._loss + batch_request.loss,
                self._losses + batch_request.losses,
            )
            self.give_back(worker)
            loan = None
        if batch_request.stop:
            self._last, self._stops = self._next, True
        answer: dict[str, Any] = {"wait": True}
        if batch_request.wants:
            answer = self._next_task(worker, loan, alive)
        if not batch_request.knows and self.turn is not None:
            answer["agreed"] = self.turn.notes.get("agreed")
        return answer

    def _next_task(self, worker: int, loan: Loan | None, alive: Sequence[int]) -> dict[str, Any]:
        if self.over:
            return {"over": True}
        if self.turn is None or self.all_done:
            if self.chief not in alive:
                self.chief = min(alive)
            return self._floor() if worker == self.chief else {"wait": True}
        loan = loan or self._lend(worker, len(alive))
        if loan is None:
            return {"wait": True}
        turn = self.turn
        return {
            "lease": loan.number,
            "first": loan.first,
            "last": loan.last,
            "epoch": turn.epoch,
            "skip": turn.skip,
            "step": turn.step + loan.first - turn.first,
            "workers": len(alive),
        }

    def _floor(self) -> dict[str, Any]:
        """Facts for the first worker: the finished turn, its losses and its seconds."""
        facts: dict[str, Any] = {"floor": True, "turn": None, "stop": self._stops}
        if self.turn is not None:
            facts["turn"] = {**self.turn.model_dump(), "last": self._last}
        seconds = time.monotonic() - self._begun
        return facts | {"loss": self._loss, "losses": self._losses, "seconds": seconds}

    def _lend(self, worker: int, workers: int) -> Loan | None:
        assert self.turn is not None
        if self._back:
            first, last = self._back.pop(0)
        else:
            grain = self.turn.grain
            # At most 64 batches at a time, or a window of geo; about four leases of each worker
            # are left: short ones towards the end.
            size = min(64, -(-(self._last - self._next) // (4 * workers)))
            size = grain * max(1, -(-size // grain))
            first, last = self._next, min(self._last, self._next + size)
            self._next = last
        if first == last:
            return None
        self._num_leases += 1
        self.leases[worker] = Loan(self._num_leases, first, last)
        return self.leases[worker]

    def advance(self, worker: int, lease: int, done: int) -> None:
        """Every server has applied the batches of a lease before `done`."""
        loan = self.leases.get(worker)
        if loan is not None and loan.number == lease:
            loan.first = min(max(loan.first, done), loan.last)

    def give_back(self, worker: int) -> tuple[int, int] | None:
        """A worker has its lease no more: what it has not done goes to others; which that is."""
        loan = self.leases.pop(worker, None)
        if loan is None or loan.first == loan.last:
            return None
        self._back.append((loan.first, loan.last))
        return self._back[-1]


class Applied:
    """The batches of the present epoch whose gradients a server has applied, as ranges."""

    def __init__(self) -> None:
        self.epoch = 0
        self._edges: list[int] = []  # first and last (without it) of each range, ascending

    def is_new(self, epoch: int, first: int, last: int) -> bool:
        """Whether none of these was applied; False: all of them were. Anything else is refused."""
        if first == last or epoch < self.epoch:
            return False
        if epoch > self.epoch:
            return True
        place = bisect_right(self._edges, first)
        inside = place % 2 == 1  # after the first of a range, and before its last
        following = self._edges[place] if place < len(self._edges) else last
        if last > following:
            raise WireError(
                f"gradients of batches {first} to {last - 1}, some of which came before"
            )
        if not inside and len(self._edges) >= 1 << 17:
            raise WireError(f"gradients of batch {first}, far from too many others that came")
        return not inside

    def add(self, epoch: int, first: int, last: int) -> None:
        """They are applied now; with a later epoch the one before is over."""
        if epoch != self.epoch:
            self.epoch, self._edges = epoch, []
        place = bisect_right(self._edges, first)
        # An edge shared with a neighbouring range is no edge any more.
        before, after = bisect_left(self._edges, first), bisect_right(self._edges, last)
        self._edges[before:after] = [first] * (before == place) + [last] * (after == place)
