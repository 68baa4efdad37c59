"""Lease: batches of an epoch that this worker was lent, and how far it has come with them.

    first <= done <= pushed <= computed <= last

done       every server has applied the batches before this
pushed     the gradients of those before this are on their way
computed   the next push is of batches `pushed` to `computed` - 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.ps.wire import PLACE


@dataclass
class Lease:
    """What server 0 lent."""

    number: int
    epoch: int
    first: int
    last: int
    skip: int  # samples before batch 0
    step: int  # steps of the run before batch `first`
    workers: int  # that there were then

    def __post_init__(self) -> None:
        self.done = self.pushed = self.computed = self.first

    @classmethod
    def of(cls, told: dict[str, Any]) -> Lease:
        """As an answer tells it."""
        return cls(told.pop("lease"), **told)

    def take_place(self) -> bytes:
        """Of which batches the next push is; the one after it continues from there."""
        place = PLACE.pack(self.epoch, self.pushed, self.computed, self.number, self.done)
        self.pushed = self.computed
        return place
