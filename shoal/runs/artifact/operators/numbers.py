"""Operators of plain numbers: sizes, and what is computed from them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

LARGEST = 1 << 62  # number that is computed with
_NAMES = "add sub mul floordiv mod neg ge le gt lt eq ne truediv"


def _of_numbers(function: Callable) -> Callable:
    """Arithmetic of numbers alone: lists, text and numbers of any length could grow without end."""

    def checked(*numbers: Any) -> Any:
        for one in numbers:
            if isinstance(one, torch.SymInt | torch.SymFloat):  # while a graph is traced again
                continue
            if not isinstance(one, int | float) or abs(one) > LARGEST:
                raise TypeError(f"a number is computed from {str(one)[:80]}")
        return function(*numbers)

    return checked


def _item(made: Any, place: Any) -> Any:
    """One of several tensors that an operator made."""
    if not isinstance(made, list | tuple) or not isinstance(place, int):
        raise TypeError(f"item {str(place)[:80]} of a {type(made).__name__}")
    return made[place]


def _size(made: Any, axis: Any) -> int:
    """The size of an axis of a tensor, or of lists in its place."""
    if not isinstance(axis, int):
        raise TypeError(f"the size of axis {str(axis)[:80]}")
    return made.shape[axis]


NUMBERS: dict[str, Callable] = {
    **{f"operator.{name}": _of_numbers(getattr(operator, name)) for name in _NAMES.split()},
    "operator.getitem": _item,
    "aten.sym_size.int": _size,
    "aten.sym_numel.default": lambda made: math.prod(made.shape),
    "math.max": _of_numbers(max),
    "math.min": _of_numbers(min),
    "torch.sym_max": _of_numbers(max),
    "torch.sym_min": _of_numbers(min),
    "math.trunc": _of_numbers(math.trunc),
}
