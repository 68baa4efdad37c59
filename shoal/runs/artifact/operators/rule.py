"""A rule: what the arguments of an operator must be before a graph calls it.

A graph may come from anybody, and torch's operators do not check all that they are given: a wrong
axis or size can make one read or write outside its arrays. So a rule looks at every argument that
decides where an operator reads and writes: axes, sizes, shapes, and the values of indexes. It runs
before every call, on the very arguments of that call; of `meta` tensors, which have shapes and no
memory, it checks all but values.

A rule takes the arguments by name, raises ValueError for what is not allowed, and returns the cost
of the call, before any memory is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32)
Arguments = dict[str, Any]


class Cost(NamedTuple):
    """What a call takes: numbers in its results and in between, and numbers that it computes."""

    numbers: int
    work: int


Rule = Callable[[Arguments], Cost]


def cost(numbers: int, work: int = 0) -> Cost:
    """The cost of a call; every number that is made is computed, too."""
    return Cost(numbers, max(numbers, work))


def room(shape: Sequence[int]) -> int:
    """The numbers of a shape, were no axis empty: sums along an empty one have as many."""
    return math.prod(max(1, size) for size in shape)


def need(right: bool, why: str, *shown: Any) -> None:
    """Refuse arguments that are not right; `shown` stands in the error (shapes as lists)."""
    if not right:
        raise ValueError(why % tuple(list(x) if isinstance(x, torch.Size) else x for x in shown))


def axis_of(x: Tensor, axis: Any, more: int = 0) -> int:
    """An axis of a tensor, counted from the front; `more`: places behind its last axis."""
    count = max(1, x.dim() + more)  # torch lets a single number have one axis
    need(-count <= axis < count, "axis %s of %s", axis, x.shape)
    return axis % count


def axes_of(x: Tensor, axes: Any) -> list[int]:
    """Axes of a tensor, each named once."""
    found = [axis_of(x, one) for one in (axes if isinstance(axes, list) else [axes])]
    need(len(set(found)) == len(found), "an axis twice in %s", axes)
    return found


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


def within(index: Tensor, low: int, high: int) -> None:
    """Refuse an index with a value below `low`, or of `high` and more."""
    need(index.dtype in INTEGERS, "an index of %s", index.dtype)
    if index.is_meta or not index.numel():
        return
    least, most = (int(one) for one in torch.aminmax(index))
    need(
        low <= least and most < high,
        "values %s..%s; %s..%s are allowed",
        least,
        most,
        low,
        high - 1,
    )
