"""Members: the workers of a run where they come and go, and the ledger that server 0 keeps.

A worker that goes silent is given up: what it says later is refused, and its batches go to others.
The run ends when the chief says so, and fails when nobody is left.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TypeVar

from pydantic import ValidationError

from shoal.config.section import Section
from shoal.ps.server.answers import Answers, Request
from shoal.ps.server.ledger import Asked, Ledger, Turn
from shoal.ps.server.roster import Roster
from shoal.ps.wire import ANY_NUMBER, MOST_WORKERS, Header, WireError, parse_json

MOST_SAID = 1 << 20  # bytes of a request, with the notes of a chief
S = TypeVar("S", bound=Section)
log = logging.getLogger("shoal")


class Members:
    """Who takes part, as one server knows it."""

    def __init__(self, index: int, roster: Roster, answers: Answers):
        self.index, self.roster, self.answers = index, roster, answers
        self.on = False  # whether workers come and go, once one has said so
        self.ledger = Ledger()  # of server 0; that of the others is empty
        self._over = False  # a worker said so
        self._alone_since: float | None = None  # when the last worker went

    @property
    def over(self) -> bool:
        """Whether the run is over, and everybody has gone."""
        return (self._over or self.ledger.over) and not self.roster.alive

    def number_of(self, header: Header) -> int:
        """The number of a worker that says hello: server 0 gives it, and others are told."""
        for number, worker in self.roster.workers.items():
            if worker.session == header.session:
                return number
        if header.worker != ANY_NUMBER:
            return header.worker
        if self.index:
            raise WireError(f"server 0 gives workers their numbers, and this is {self.index}")
        number = len(self.roster)
        if number >= MOST_WORKERS:
            raise WireError(f"{number} workers have come already, as many as there may be")
        return number

    def came(self, number: int) -> None:
        """A worker said hello."""
        self._alone_since = None
        if self.index == 0:
            log.info("worker %d on host %s joins", number, self.roster[number].host)

    def left(self, number: int, over: bool) -> None:
        """A worker said goodbye; over: because nothing is left to do."""
        self._over = self._over or over
        self._reclaim(number)
        if self.index == 0 and not over:
            log.info("worker %d on host %s leaves", number, self.roster[number].host)

    def lease(self, request: Request) -> None:
        """A worker asks what to do."""
        self._check_keeper()
        asked = _parse(Asked, request)
        answer = self.ledger.ask(request.header.worker, asked, self.roster.alive)
        self.answers.give(request, [json.dumps(answer).encode()])

    def turn(self, request: Request) -> None:
        """The chief says what comes next."""
        self._check_keeper()
        self.ledger.go_on(request.header.worker, _parse(Turn, request))

    def look_after(self) -> str | None:
        """Give up who went silent; where nobody is left for long, why the run has failed."""
        for number, why in self.roster.give_up_silent():
            if self.index == 0:
                log.warning("%s", why)
            self._reclaim(number)
        if self.roster.alive or not len(self.roster) or self.over:
            self._alone_since = None
            return None
        self._alone_since = self._alone_since or time.monotonic()
        if time.monotonic() - self._alone_since <= self.roster.timeout:
            return None
        return "all workers have left or were lost, and none has joined since"

    def _reclaim(self, number: int) -> None:
        back = self.ledger.give_back(number)
        if back is not None:
            first, last = back
            log.info("batches %d to %d of worker %d go to others", first, last - 1, number)

    def _check_keeper(self) -> None:
        if not self.on:
            raise WireError("the workers of this run do not come and go: nothing is lent to them")
        if self.index:
            raise WireError(f"server 0 keeps the ledger of this run, and this is {self.index}")


def _parse(kind: type[S], request: Request) -> S:
    frame = request.only(1)[0]
    if len(frame) > MOST_SAID:
        raise WireError(f"{len(frame)} bytes of text; at most {MOST_SAID} are taken")
    try:
        return kind.model_validate(parse_json(frame))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))[:100]
        what = request.header.kind.name
        raise WireError(f"a {what} that is not right: {place}: {first['msg']}") from None
