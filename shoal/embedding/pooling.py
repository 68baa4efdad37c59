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

from shoal.embedding.softmax.native import has_neon, on_arm
from shoal.world.core import load_core

_core = load_core()
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
    if padding is not None and len(ids) and _core_takes(ids, offsets):
        shares = torch.empty(len(offsets) - 1, 1)
        bags = offsets.data_ptr(), len(shares)
        _core.share_bags(ids.data_ptr(), len(ids), padding, *bags, shares.data_ptr())
        return shares
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
        if _core_takes(offsets) and on_arm(grad) and (weights is None or on_arm(weights)):
            out = grad.new_empty(ctx.total, grad.shape[1])
            bags = offsets.data_ptr(), len(grad), 0 if weights is None else weights.data_ptr()
            _core.spread_bags(grad.data_ptr(), grad.shape[1], *bags, ctx.total, out.data_ptr())
            return out, None, None, None
        numbers = torch.arange(offsets.numel() - 1, device=offsets.device)
        bag_of = numbers.repeat_interleave(offsets.diff(), output_size=ctx.total)
        grad = grad.index_select(0, bag_of)
        return grad if weights is None else grad.mul_(weights[:, None]), None, None, None


def _core_takes(*numbers: Tensor) -> bool:
    """Whether the core reads these ids and offsets as they lie, and is worth it."""
    plain = all(x.is_cpu and x.dtype == torch.int64 and x.is_contiguous() for x in numbers)
    return plain and has_neon()


def sum_bags(
    x: Tensor, starts: Tensor, ids: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Sums of weights * x[ids], one from each start to the next: x [n, d] -> [bags, d].

    No ids: rows of x as they lie. The gradient is not kept: who calls it makes it.
    """
    given = [x] if weights is None else [x, weights]
    if not on_arm(*given) or x.dim() != 2:
        every = torch.arange(len(x), device=x.device) if ids is None else ids
        return F.embedding_bag(
            every, x, starts, mode="sum", per_sample_weights=weights, include_last_offset=True
        )
    places = len(x) if ids is None else len(ids)
    for one in [starts] if ids is None else [starts, ids]:
        if one.dtype != torch.int64 or one.dim() != 1:
            raise ValueError(f"bags of {one.dtype} {list(one.shape)}: starts and ids are int64 [n]")
    starts, ids = starts.contiguous(), None if ids is None else ids.contiguous()
    if not len(starts) or (weights is not None and weights.shape != (places,)):
        raise ValueError(f"bags of {places} places have a start, an end and as many weights")
    out = x.new_empty(len(starts) - 1, x.shape[1])
    more = [0 if one is None else one.data_ptr() for one in (ids, weights)]
    bags = starts.data_ptr(), len(out), *more, places
    _core.sum_bags(x.data_ptr(), *x.shape, *bags, out.data_ptr(), torch.get_num_threads())
    return out
