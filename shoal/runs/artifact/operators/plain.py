"""Rules of operators that give a number for each number, and of those that make tensors."""

from __future__ import annotations

import math

from torch import Tensor

from shoal.runs.artifact.operators.rule import (
    Arguments,
    Cost,
    broadcast,
    cost,
    need,
    sizes_of,
    within,
)


def elementwise(a: Arguments) -> Cost:
    """Tensors that are stretched to one shape, and plain numbers."""
    shapes = [one.shape for one in a.values() if isinstance(one, Tensor)]
    return cost(math.prod(broadcast(*shapes)))


def dividing(a: Arguments) -> Cost:
    """Whole numbers are divided by positive ones: the least of all by -1 would be SIGFPE."""
    number, other = a["self"], a["other"]
    need(a.get("rounding_mode") in (None, "floor", "trunc"), "an unknown rounding_mode")
    if isinstance(other, Tensor):
        if not (number.is_floating_point() or other.is_floating_point()):
            within(other, 1, 1 << 63)
    elif not (number.is_floating_point() or isinstance(other, float)):
        need(other >= 1, "whole numbers are divided by %s", other)
    return elementwise(a)


def dropout(a: Arguments) -> Cost:
    """Nothing is dropped from a model in use."""
    need(a["train"] is False, "dropout while training")
    return elementwise(a)


def prelu(a: Arguments) -> Cost:
    """A slope for all, or for each place of axis 1."""
    x, slope = a["self"], a["weight"]
    count = x.shape[1] if x.dim() > 1 else 1
    need(slope.dim() == 1 and len(slope) in (1, count), "slopes %s", slope.shape)
    need(x.dtype == slope.dtype and x.is_floating_point(), "slopes of another type")
    return cost(x.numel())


def making(a: Arguments) -> Cost:
    """A tensor of given sizes, or of a single number."""
    return cost(math.prod(sizes_of(a.get("size", []))))


def arange(a: Arguments) -> Cost:
    """Numbers from a start to an end."""
    start, end, step = a.get("start", 0), a["end"], a.get("step", 1)
    need(all(abs(one) < 1 << 53 for one in (start, end, step)), "a range without an end")
    need(step != 0 and (end - start) / step >= 0, "a range from %s to %s by %s", start, end, step)
    return cost(math.ceil((end - start) / step) + 1)
