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

from shoal.kernels.bags import sum_bags

Pooling = Literal["sum", "mean"]


def pool_rows(
    rows: Tensor,
    ids: Tensor,
    offsets: Tensor,
    how: Pooling = "sum",
    weights: Tensor | None = None,
    padding: int | None = None,
) -> Tensor:
    """Rows [n, dim] of ids [n], pooled: offsets [bags + 1] -> [bags, dim].

    The gradient goes to the rows, not to the weights, and is the same at every run on any device.
    """
    if how not in ("sum", "mean"):
        raise ValueError(f"pooling {how!r}; known are sum and mean")
    shares = _shares(ids, offsets, padding) if how == "mean" else None
    return _Pool.apply(rows, offsets, None if weights is None else weights.detach(), shares)


def _shares(ids: Tensor, offsets: Tensor, padding: int | None) -> Tensor:
    """1 / how many ids each bag has, padding left out: [bags, 1]."""
    present = (ids != padding).cumsum(0) if padding is not None else None
    ends = offsets if present is None else F.pad(present, (1, 0))[offsets]
    return (1.0 / ends.diff().clamp(min=1)).unsqueeze(1)


class _Pool(torch.autograd.Function):
    """Bags of neighbouring rows; torch's own backward would sort where copying is enough."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, offsets: Tensor, weights: Tensor | None, shares: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(offsets, weights, shares)
        ctx.total = len(rows)
        if not len(rows):
            return rows.new_zeros(offsets.numel() - 1, rows.shape[1])
        out = sum_bags(rows, offsets, weights=weights)
        return out if shares is None else out.mul_(shares)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        offsets, weights, shares = ctx.saved_tensors
        grad = (grads[0] if shares is None else grads[0] * shares).contiguous()
        numbers = torch.arange(offsets.numel() - 1, device=offsets.device)
        bag_of = numbers.repeat_interleave(offsets.diff(), output_size=ctx.total)
        grad = grad.index_select(0, bag_of)
        return grad if weights is None else grad.mul_(weights[:, None]), None, None, None
