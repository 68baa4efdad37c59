"""A rule: what the arguments of an operator must be before a graph calls it.

A graph may come from anybody, and torch's operators do not check all that they are given: a wrong
size or index can make one read or write outside its arrays. A rule looks at what torch does not
check (tests/fuzz/operators.py shows that nothing is left). It runs on the very arguments of a
call, before it; of `meta` tensors, which have shapes and no memory, it checks all but values. Sizes
of all that a graph computes follow from the shapes of its inputs, so a graph remembers for which of
them every rule was content, and then only those run again that look into tensors (`reads_values`).

A rule takes the arguments by name, raises ValueError for what is not allowed, and returns the cost
of the call, before any memory is taken. Sizes may depend on the number of samples, so a meter adds
the costs up in every run with new shapes, not only when the artifact is opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32)
Arguments = dict[str, Any]


class Cost(NamedTuple):
    """Cost of a call: numbers in its results and in between, and numbers that it computes."""

    numbers: int
    work: int


Rule = Callable[[Arguments], Cost]
READ_VALUES: set[Rule] = set()  # rules that look into tensors, not at their shapes and types alone


def reads_values(rule: Rule) -> Rule:
    """Mark a rule that looks into tensors: it runs before every call.

    What other rules find out is the same for all inputs of the same shapes and types.
    """
    READ_VALUES.add(rule)
    return rule


def cost(numbers: int, work: int = 0) -> Cost:
    """The cost of a call; every number of a result is computed, too."""
    return Cost(numbers, max(numbers, work))


def room(shape: Sequence[int]) -> int:
    """The numbers of a shape, were no axis empty: sums along an empty one have as many."""
    return math.prod(max(1, size) for size in shape)


def need(right: bool, why: str, *shown: Any) -> None:
    """Refuse arguments that are not right; `shown` stands in the error (shapes as lists)."""
    if not right:
        raise ValueError(why % tuple(list(x) if isinstance(x, torch.Size) else x for x in shown))


def axis_of(x: Tensor, axis: int) -> int:
    """An axis of a tensor, counted from the front."""
    count = max(1, x.dim())  # torch lets a single number have one axis
    need(-count <= axis < count, "axis %s of %s", axis, x.shape)
    return axis % count


def sizes_of(sizes: list[int]) -> list[int]:
    """Sizes of axes."""
    need(all(one >= 0 for one in sizes), "sizes %s", sizes)
    return sizes


def broadcast(*shapes: Sequence[int]) -> list[int]:
    """The shape that all of these are stretched to."""
    if all(one == shapes[0] for one in shapes):
        return list(shapes[0])
    out = []
    for sizes in zip_longest(*(reversed(one) for one in shapes), fillvalue=1):
        wide = {size for size in sizes if size != 1} or {1}
        need(len(wide) == 1, "shapes %s do not fit", [list(one) for one in shapes])
        out.append(wide.pop())
    return out[::-1]


def stretches_to(x: Tensor, shape: Sequence[int]) -> None:
    """Refuse a tensor that cannot be stretched to a shape."""
    need(broadcast(x.shape, shape) == list(shape), "%s is not of %s", x.shape, shape)


def same_floats(*tensors: Tensor | None) -> None:
    """Refuse tensors that are not all float32, or all float64."""
    kinds = {one.dtype for one in tensors if one is not None}
    need(len(kinds) == 1 and kinds <= {*FLOATS}, "%s; all float32 or float64 is allowed", kinds)


def least_and_most(index: Tensor) -> tuple[int, int]:
    """The least and the greatest value of an index that is not empty."""
    if index.numel() <= 64:  # of one request; torch's own takes ten times as long for so few
        values = index.flatten().tolist()
        return min(values), max(values)
    least, most = torch.aminmax(index)
    return int(least), int(most)


def within(index: Tensor, low: int, high: int) -> None:
    """Refuse an index with a value below `low`, or of `high` and more."""
    need(index.dtype in INTEGERS, "an index of %s", index.dtype)
    if index.is_meta or not index.numel():
        return
    least, most = least_and_most(index)
    need(
        low <= least and most < high,
        "values %s..%s; %s..%s are allowed",
        least,
        most,
        low,
        high - 1,
    )


# ---- bounds: what one run of a graph may hold and compute ---------------------------------------

NUMBERS = 1 << 27  # that one call of an operator makes, results and in between
HELD = 1 << 31  # bytes of all results that are still needed
WORK = 1 << 38  # numbers and products that are computed in all


class TooLarge(ValueError):
    """A graph would hold or compute too much for the samples that it is given."""


class Meter:
    """Counts what one run of a graph holds and computes."""

    def __init__(self, where: str, free: Iterable[Any]):
        """`where` names the graph in errors; `free`: tensors that are there anyway."""
        self.where = where
        self.work = 0
        self.held = 0
        # Storage -> how many results lie in it.
        self._users = {one.untyped_storage()._cdata: 1 for one in _tensors(list(free))}

    def admit(self, cost: Cost) -> None:
        """Refuse a call that would go beyond the bounds."""
        self.work += cost.work
        for text, amount, most in (
            ("makes {} numbers at a time", cost.numbers, NUMBERS),
            ("holds {} bytes", self.held + 4 * cost.numbers, HELD),
            ("computes {} numbers", self.work, WORK),
        ):
            if amount > most:
                raise TooLarge(f"{self.where} {text.format(amount)}; {most} are the most")

    def add(self, result: Any) -> None:
        """Count the memory of a result; views of counted tensors take none."""
        for tensor in _tensors(result):
            if room(tensor.shape) > NUMBERS:  # an axis is empty, so it took no memory; a sum would
                raise TooLarge(f"{self.where} makes a tensor {list(tensor.shape)}")
            storage = tensor.untyped_storage()
            users = self._users.get(storage._cdata, 0)
            self._users[storage._cdata] = users + 1
            if not users:
                self.held += storage.nbytes()

    def remove(self, result: Any) -> None:
        """Subtract a result that no node reads any more."""
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            self._users[storage._cdata] -= 1
            if not self._users[storage._cdata]:
                del self._users[storage._cdata]
                self.held -= storage.nbytes()


def _tensors(result: Any) -> list[Tensor]:
    results = result if isinstance(result, list | tuple) else [result]
    return [one for one in results if isinstance(one, Tensor)]
