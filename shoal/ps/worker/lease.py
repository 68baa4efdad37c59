"""Lease: batches of an epoch that server 0 lends this worker, and the worker's progress in them.

    first <= done <= pushed <= computed <= last

done       every server has applied the batches before this
pushed     the gradients of those before this are on their way
computed   the next push is of batches `pushed` to `computed` - 1
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from shoal.ps.wire import PLACE, WireError


@dataclass
class Lease:
    """Batches that server 0 lent to this worker."""

    number: int
    epoch: int
    first: int
    last: int
    skip: int  # samples before batch 0
    step: int  # steps of the run before batch `first`
    workers: int  # how many there were when it was lent

    def __post_init__(self) -> None:
        self.done = self.pushed = self.computed = self.first

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Lease:
        """The lease in an answer; WireError where it is incomplete."""
        values = {**answer, "number": answer["lease"]}
        names = [field.name for field in fields(cls)]
        wrong = [name for name in names if type(values.get(name)) is not int or values[name] < 0]
        if wrong or values["first"] > values["last"]:
            raise WireError(f"a lease without a right {wrong[0] if wrong else 'last'}")
        return cls(**{name: values[name] for name in names})

    def take_place(self) -> bytes:
        """The batches of the next push; the push after it continues from there."""
        place = PLACE.pack(self.epoch, self.pushed, self.computed, self.number, self.done)
        self.pushed = self.computed
        return place
