"""Offering: memory that a worker offers a server of the same host, for rows to come through."""

from __future__ import annotations

import logging
from typing import Any

from shoal.ps.address import stays_here
from shoal.ps.shared import Offered, can_share
from shoal.ps.wire import BFLOAT16, COMPRESSED, SHARED, Header, Kind, parse_json

log = logging.getLogger("shoal")


class Offering:
    """What one connection offers, and the ring that its server has taken."""

    def __init__(self, name: str, address: str, wanted: bool):
        """wanted: whether there may be any."""
        self.name, self._address = name, address
        self.possible = wanted
        self.ring: Any = None  # where rows that come may stand
        self._offered: dict[int, Offered] = {}  # by the number of the request
        self.made = 0  # offers so far

    def flags(self, flags: int) -> int:
        """Those of a request for rows: packed ones do not come through memory."""
        may = self.made and self.possible and not flags & (BFLOAT16 | COMPRESSED)
        return flags | SHARED if may else flags

    def make(self, number: int) -> bytes | None:
        """What a new offer says, a request of this number; None: there is none to make.

        Memory is new each time: what a server was told to write where, and may have forgotten or
        will do late, concerns the old one.
        """
        if not self.made:
            self.possible = self.possible and can_share() and stays_here(self._address)
        if not self.possible:
            return None
        self.close()
        try:
            offered = Offered(self.made)
        except OSError as error:
            self._give_up(str(error))
            return None
        self.made += 1
        self._offered[number] = offered
        return offered.frame

    def take_answer(self, header: Header, frames: list[memoryview]) -> bool:
        """Use what the server has taken; whether the answer is one to an offer."""
        offered = self._offered.pop(header.sequence, None)
        if offered is None:
            return False
        offered.close()
        if header.kind == Kind.OK:
            self.ring = offered.ring
        else:
            self._give_up(str(parse_json(frames[1]).get("message")))
        return True

    def _give_up(self, why: str) -> None:
        self.possible, self.ring = False, None
        log.info("rows of %s come through its socket, not through memory: %s", self.name, why)

    def close(self) -> None:
        """Give back descriptors of offers that nobody answered."""
        for offered in self._offered.values():
            offered.close()
        self._offered.clear()
