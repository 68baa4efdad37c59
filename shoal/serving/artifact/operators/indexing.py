"""Rules of operators that read or write at places that values name: every value is looked at."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal.serving.artifact.operators.rule import (
    Arguments,
    Cost,
    axis_of,
    broadcast,
    cost,
    need,
    reads_values,
    stretches_to,
    within,
)


@reads_values
def index_select(a: Arguments) -> Cost:
    """Places of one axis, by a list of them."""
    x, index = a["self"], a["index"]
    need(x.dim() > 0 and index.dim() == 1, "a list of places of a tensor")
    size = x.shape[axis_of(x, a["dim"])]
    within(index, 0, size)
    return cost(x.numel() // max(1, size) * len(index))


@reads_values
def embedding(a: Arguments) -> Cost:
    """Rows of a matrix."""
    rows, index = a["weight"], a["indices"]
    need(rows.dim() == 2 and -len(rows) <= a["padding_idx"] < max(1, len(rows)), "no such rows")
    need(a["sparse"] is False and a["scale_grad_by_freq"] is False, "rows that are not learned")
    within(index, 0, len(rows))
    return cost(index.numel() * rows.shape[1])


@reads_values
def gather(a: Arguments) -> Cost:
    """For each place of an index, the number at that place of one axis."""
    x, index = a["self"], a["index"]
    _along(x, index, a["dim"])
    need(a.get("sparse_grad", False) is False, "nothing is learned")
    return cost(index.numel())


@reads_values
def scatter(a: Arguments) -> Cost:
    """A copy, with values at the places of an index."""
    x, index, values = a["self"], a["index"], a.get("src")
    _along(x, index, a["dim"])
    if values is not None:
        right = values.dim() == index.dim() and values.dtype == x.dtype
        right = right and all(n <= m for n, m in zip(index.shape, values.shape))
        need(right, "values that are not of the index's shape")
    return cost(x.numel() + index.numel())


def _along(x: Tensor, index: Tensor, dim: int) -> None:
    axis = axis_of(x, dim)
    right = x.dim() == index.dim() > 0 and index.dtype == torch.int64
    right = right and all(n <= m for k, (n, m) in enumerate(zip(index.shape, x.shape)) if k != axis)
    need(right, "an index %s of %s", index.shape, x.shape)
    within(index, 0, x.shape[axis])


@reads_values
def index(a: Arguments) -> Cost:
    """Places of several axes, by a tensor of them each; None takes all of an axis."""
    return cost(math.prod(_indexed(a["self"], a["indices"])))


@reads_values
def index_put(a: Arguments) -> Cost:
    """A copy, with values at such places."""
    x, values = a["self"], a["values"]
    shape = _indexed(x, a["indices"])
    stretches_to(values, shape)
    need(
        values.dtype == x.dtype and all(one is not None for one in a["indices"]),
        "values of another type",
    )
    return cost(x.numel() + 2 * math.prod(shape))


def _indexed(x: Tensor, places: list[Tensor | None]) -> list[int]:
    """The shape of what is read."""
    indexes = [(axis, index) for axis, index in enumerate(places) if index is not None]
    need(len(indexes) > 0 and len(places) <= x.dim(), "as many indexes as axes, or fewer")
    for axis, index in indexes:
        need(index.dtype == torch.int64, "an index of %s", index.dtype)
        within(index, -x.shape[axis], x.shape[axis])
    taken = {axis for axis, _ in indexes}
    rest = [size for axis, size in enumerate(x.shape) if axis not in taken]
    return broadcast(*(index.shape for _, index in indexes)) + rest


def searchsorted(a: Arguments) -> Cost:
    """Where values belong in ascending rows: of one row for all, or of one each."""
    rows, values = a["sorted_sequence"], a["self"]
    need(rows.dim() > 0 and a["sorter"] is None and a["side"] in (None, "left", "right"), "rows")
    batched = rows.dim() == values.dim() and rows.shape[:-1] == values.shape[:-1]
    need(rows.dim() == 1 or batched, "values %s in rows %s", values.shape, rows.shape)
    need(rows.dtype == values.dtype, "values of another type")
    return cost(values.numel() + rows.numel(), 64 * values.numel())
