"""Replicas: the servers that hold the same rows, as one link.

What changes a server goes to all of them, and each answers for itself: no server knows another.
What is only read is asked of the first. One that is lost is left out from then on; what it had not
answered, the next one is asked for, so nobody waits for a server to be started.

In sync a step is applied where the gradients of all workers are, in the order of their numbers:
replicas are equal to the last bit. In async and geo each applies them in the order in which they
come there; each has all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from shoal.ps.wire import Kind, MessageHeader, Wanted, json_frame, parse_json
from shoal.ps.worker.arriving import ArrivingRows
from shoal.ps.worker.link import Link
from shoal.world.world import PeerLost

# What changes a server.
CHANGES = (Kind.HELLO, Kind.PUSH, Kind.SET_DENSE, Kind.SAVE, Kind.LOAD, Kind.BYE)

log = logging.getLogger("shoal")


class Replicas:
    """The links to all servers of one shard; used as one."""

    def __init__(self, links: Sequence[Link]):
        self.links = list(links)
        self.live = list(links)
        self._reads: dict[int, Callable[[Link], Any]] = {}  # asked of one: asks another
        self._rows: dict[int, ArrivingRows] = {}  # where rows belong that were, or will be, asked

    @property
    def index(self) -> int:
        return self.links[0].index

    @property
    def name(self) -> str:
        return self.live[0].name

    def close(self) -> None:
        """Drop the connections."""
        for link in self.live:
            link.close()

    # ---- requests -------------------------------------------------------------------------------

    def ask(self, header: MessageHeader, frames: Sequence[Any]) -> int:
        """Send a request: to all where it changes them."""
        if header.kind not in CHANGES:
            self._read(header, lambda link: link.ask(header, frames))
        else:
            for number, link in enumerate(self.live):
                held = header.kind == Kind.SAVE and number > 0  # one writes, others are ready to
                link.ask(header, [_held(frames[0])] if held else frames)
        return header.sequence

    def ask_rows(self, header: MessageHeader, wanted: Wanted) -> None:
        """Send a request for rows."""
        self._read(header, lambda link: link.ask_rows(header, wanted))

    def expect(self, number: int, rows: ArrivingRows) -> None:
        """Say where the rows of a request belong."""
        self._rows[number] = rows
        self.live[0].expect(number, rows)

    def _read(self, header: MessageHeader, ask: Callable[[Link], Any]) -> None:
        self._reads[header.sequence] = ask
        self._ask_first(header.sequence)

    def _ask_first(self, number: int) -> None:
        if number in self._rows:
            self.live[0].expect(number, self._rows[number])
        self._reads[number](self.live[0])

    def wait(self, number: int, patience: float | None = None) -> list[memoryview]:
        """The frames of an answer, less the header; of a change when all that are left have it."""
        if number not in self._reads:
            return self._wait_for(self.live, number, patience)[0]
        found: list[list[memoryview]] = []
        try:
            while not found:
                found = self._wait_for(self.live[:1], number, patience)
        finally:
            del self._reads[number]
            self._rows.pop(number, None)
        return found[0]

    def tell_others(self, header: MessageHeader, frames: Sequence[Any]) -> None:
        """Let those know that were not asked what the first one answered."""
        others = self.live[1:]
        for link in others:
            link.ask(header, frames)
        self._wait_for(others, header.sequence)

    def _wait_for(
        self, links: Sequence[Link], number: int, patience: float | None = None
    ) -> list[list[memoryview]]:
        found = []
        for link in list(links):
            try:
                found.append(link.wait(number, patience))
            except PeerLost as error:
                if link.caller.failure:  # the run cannot continue, whatever this one does
                    raise
                self.lose(link, str(error))
        return found

    # ---- a server that is lost ------------------------------------------------------------------

    def lose(self, link: Link, why: str) -> None:
        """Continue without a server; PeerLost where it was the last."""
        if self.live == [link]:
            before = "; ".join(one.failure for one in self.links if one is not link)
            raise PeerLost(f"{why} (its replica before it: {before})")
        first = link is self.live[0]
        self.live.remove(link)
        link.left_out = True
        link.failure = why  # nobody sends it a sign of life: those who still reach it hear that
        if link.caller.worker == 0 and not link.caller.quiet:  # the others find the same
            log.warning("%s; its replica at %s goes on", why, self.live[0].address)
        for number in self._reads if first else ():
            if number in link.came and link.came[number][0].kind == Kind.OK:
                self.live[0].came[number] = link.came[number]
            else:
                self._ask_first(number)
        link.close()


def _held(frame: bytes) -> bytes:
    """A save of which only the moment is kept."""
    return json_frame({**parse_json(frame), "held": True})
