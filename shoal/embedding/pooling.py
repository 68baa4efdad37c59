"""Rows of lists, pooled to one row each.

    ids      3  8  8 | 5 |   | 2  9          weights, one per id, are optional
    offsets  0         3   4   4      6      list b is ids[offsets[b] : offsets[b + 1]]

An empty list gives zeros. The padding id counts as absent: its row is zeros, and no mean counts
it.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def pool_rows(
    rows: Tensor,
    ids: Tensor,
    offsets: Tensor,
    how: Literal["sum", "mean"] = "sum",
    weights: Tensor | None = None,
    padding: int | None = None,
) -> Tensor:
    """Rows [n, dim] of ids [n], pooled: offsets [bags + 1] -> [bags, dim].

    The gradient goes to the rows, not to the weights, and is the same at every run on any device.
    """
    if how not in ("sum", "mean"):
        raise ValueError(f"pooling {how!r}; known are sum and mean")
    numbers = torch.arange(offsets.numel() - 1, device=offsets.device)
    bag_of = numbers.repeat_interleave(offsets.diff(), output_size=ids.numel())
    coefficients = None if weights is None else weights.detach()
    if how == "mean":
        shares = _shares(ids, offsets, bag_of, padding)
        coefficients = shares if coefficients is None else shares * coefficients
    return _Pool.apply(rows, offsets, bag_of, coefficients)


def _shares(ids: Tensor, offsets: Tensor, bag_of: Tensor, padding: int | None) -> Tensor:
    """1 / how many ids the bag of each id has, padding left out: [n]."""
    present = (ids != padding).cumsum(0) if padding is not None else None
    ends = offsets if present is None else F.pad(present, (1, 0))[offsets]
    return (1.0 / ends.diff().clamp(min=1)).index_select(0, bag_of)


class _Pool(torch.autograd.Function):
    """Bags of neighbouring rows; torch's own backward would sort where copying is enough."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, offsets: Tensor, bag_of: Tensor, coefficients: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(bag_of, coefficients)
        if not len(rows):
            return rows.new_zeros(offsets.numel() - 1, rows.shape[1])
        every = torch.arange(len(rows), device=rows.device)
        return F.embedding_bag(
            every,
            rows,
            offsets,
            mode="sum",
            per_sample_weights=coefficients,
            include_last_offset=True,
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        bag_of, coefficients = ctx.saved_tensors
        grad = grads[0].index_select(0, bag_of)
        return grad if coefficients is None else grad.mul_(coefficients[:, None]), None, None, None
