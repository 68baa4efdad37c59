"""Bounds: what one run of a graph may hold and compute. Checked before memory is taken.

A graph says how large its tensors are, and its author may be anybody; sizes may depend on the
number of samples, so they are counted in every run, not only when the artifact is opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from shoal.runs.artifact.files import ArtifactError
from shoal.runs.artifact.operators.rule import Cost, room

NUMBERS = 1 << 27  # that one call of an operator makes, results and in between
HELD = 1 << 31  # bytes of all results that are still needed
WORK = 1 << 38  # numbers and products that are computed in all


class TooLarge(ArtifactError):
    """A graph would hold or compute too much for the samples that it is given."""


class Meter:
    """Counts what one run of a graph holds and computes."""

    def __init__(self, where: str, free: Iterable[Any]):
        """`where` names the graph in errors; `free`: tensors that are there anyway."""
        self.where, self.work, self.held = where, 0, 0
        # Storage -> how many results lie in it.
        self._users = {one.untyped_storage()._cdata: 1 for one in _tensors(list(free))}

    def admit(self, cost: Cost) -> None:
        """Refuse a call that would go beyond the bounds."""
        self.work += cost.work
        for what, found, most in (
            ("makes {} numbers at a time", cost.numbers, NUMBERS),
            ("holds {} bytes", self.held + 4 * cost.numbers, HELD),
            ("computes {} numbers", self.work, WORK),
        ):
            if found > most:
                raise TooLarge(f"{self.where} {what.format(found)}; {most} are the most")

    def add(self, made: Any) -> None:
        """Count what was made; views of what is counted take nothing."""
        for one in _tensors(made):
            if room(one.shape) > NUMBERS:  # an axis is empty, so it took no memory; a sum would
                raise TooLarge(f"{self.where} makes a tensor {list(one.shape)}")
            storage = one.untyped_storage()
            users = self._users.get(storage._cdata, 0)
            self._users[storage._cdata] = users + 1
            if not users:
                self.held += storage.nbytes()

    def remove(self, made: Any) -> None:
        """The same backwards, when nothing reads it any more."""
        for one in _tensors(made):
            storage = one.untyped_storage()
            self._users[storage._cdata] -= 1
            if not self._users[storage._cdata]:
                del self._users[storage._cdata]
                self.held -= storage.nbytes()


def _tensors(made: Any) -> list[Tensor]:
    every = made if isinstance(made, list | tuple) else [made]
    return [one for one in every if isinstance(one, Tensor)]
