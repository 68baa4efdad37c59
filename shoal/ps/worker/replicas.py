"""Replicas: the servers that hold the same rows, as one link.

Requests that change a server go to all replicas, and each answers for itself: no server knows
another. Requests that only read go to the first replica. A lost replica is left out from then on;
the next one answers its open requests, so no worker waits for a server to be started.

In sync a step is applied where the gradients of all workers are, in the order of their numbers:
replicas are equal to the last bit. In async and geo each applies them in the order in which they
come there; each has all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from shoal.distributed.world import PeerLost
from shoal.ps.wire import Kind, MessageHeader, Wanted, json_frame, parse_json
from shoal.ps.worker.link import ArrivingRows, Link

# What changes a server.
CHANGES = (Kind.HELLO, Kind.PUSH, Kind.SET_DENSE, Kind.SAVE, Kind.LOAD, Kind.BYE)

log = logging.getLogger("shoal")


class Replicas:
    """The links to all servers of one shard; used as one."""

    def __init__(self, links: Sequence[Link]):
        self.links = list(links)
        self.live = list(links)
        self._reads: dict[
            int, Callable[[Link], Any]
        ] = {}  # requests to one replica: sends one to another
        self._rows: dict[int, ArrivingRows] = {}  # where rows of present and later requests go

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
                is_held = header.kind == Kind.SAVE and number > 0  # one writes, others are ready to
                link.ask(header, [_held(frames[0])] if is_held else frames)
        return header.sequence

    def ask_rows(self, header: MessageHeader, row_ranges: Wanted) -> None:
        """Send a request for rows."""
        self._read(header, lambda link: link.ask_rows(header, row_ranges))

    def expect(self, number: int, rows: ArrivingRows) -> None:
        """Register where the rows of a request go."""
        self._rows[number] = rows
        self.live[0].expect(number, rows)

    def _read(self, header: MessageHeader, ask: Callable[[Link], Any]) -> None:
        self._reads[header.sequence] = ask
        self._ask_first(header.sequence)

    def _ask_first(self, number: int) -> None:
        if number in self._rows:
            self.live[0].expect(number, self._rows[number])
        self._reads[number](self.live[0])

    def wait(self, number: int, patience: float | None = None, least: int = 0) -> list[memoryview]:
        """The frames of an answer, less the header; of a change when all that are left have it.

        least: how many frames it must have.
        """
        if number not in self._reads:
            return self._wait_for(self.live, number, patience, least)[0]
        answers: list[list[memoryview]] = []
        try:
            while not answers:
                answers = self._wait_for(self.live[:1], number, patience, least)
        finally:
            del self._reads[number]
            self._rows.pop(number, None)
        return answers[0]

    def share_answer(self, header: MessageHeader, frames: Sequence[Any]) -> None:
        """Send the answer of the first replica to the other replicas."""
        others = self.live[1:]
        for link in others:
            link.ask(header, frames)
        self._wait_for(others, header.sequence)

    def _wait_for(
        self,
        links: Sequence[Link],
        number: int,
        patience: float | None = None,
        least: int = 0,
    ) -> list[list[memoryview]]:
        answers = []
        for link in list(links):
            try:
                answers.append(link.wait(number, patience, least))
            except PeerLost as error:
                if link.caller.failure:  # the run cannot continue, whatever this one does
                    raise
                self.lose(link, str(error))
        return answers

    # ---- a server that is lost ------------------------------------------------------------------

    def lose(self, link: Link, why: str) -> None:
        """Continue without a server; PeerLost where it was the last."""
        if self.live == [link]:
            before = "; ".join(one.failure for one in self.links if one is not link)
            raise PeerLost(f"{why} (its replica before it: {before})")
        first = link is self.live[0]
        self.live.remove(link)
        link.left_out = True
        link.failure = why  # no more heartbeats go to it
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
