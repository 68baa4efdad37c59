"""Jagged lookups: many ids per example, pooled to one row each.

    ids      3  8  8 | 5 |   | 2  9          weights, one per id, are optional
    offsets  0         3   4   4      6      bag b is ids[offsets[b] : offsets[b + 1]]

sum and mean give [bags, dim]; none gives every row, [n, dim]. An empty bag reads as zeros. The
padding id counts as absent: it adds nothing and is not counted by mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.embedding.store import Ids
from shoal.embedding.table import Table

Mode = Literal["sum", "mean", "none"]


@dataclass(frozen=True)
class Bags:
    """How the ids of a jagged lookup are pooled: every mode is a sum with coefficients."""

    offsets: Tensor  # [bags + 1] int64
    bag_of: Tensor  # [n] int32: the bag that each id lies in
    coefficients: Tensor | None  # [n] float32; None: all 1

    @property
    def count(self) -> int:
        return self.offsets.numel() - 1


class PoolingLeaf(Protocol):
    """A leaf that pools by itself."""

    table: Table

    def pull(self, ids: Ids) -> Tensor: ...

    def push(self, ids: Ids, grads: Tensor, lr: float, clicks: Tensor | None = None) -> None: ...

    def pull_bags(self, ids: Tensor, bags: Bags) -> Tensor: ...

    def push_bags(self, ids: Tensor, bags: Bags, grads: Tensor, lr: float) -> None: ...

    def dot_bags(self, ids: Tensor, bags: Bags, grads: Tensor) -> Tensor: ...


def pull_pooled(
    store: PoolingLeaf,
    ids: Tensor,
    offsets: Tensor,
    mode: Mode = "sum",
    weights: Tensor | None = None,
) -> Tensor:
    """Pooled rows: ids [n], offsets [bags + 1] -> [bags, dim] (mode none: [n, dim])."""
    bags = make_bags(store, ids, offsets, mode, weights)
    if mode == "none":
        rows = store.pull(ids)
        return rows if weights is None else rows * weights[:, None]
    return store.pull_bags(ids, bags)


def push_pooled(
    store: PoolingLeaf,
    ids: Tensor,
    offsets: Tensor,
    grads: Tensor,
    lr: float,
    mode: Mode = "sum",
    weights: Tensor | None = None,
) -> None:
    """One optimizer step by the gradients of pull_pooled's result, of the same shape."""
    bags = make_bags(store, ids, offsets, mode, weights)
    if mode == "none":
        store.push(ids, grads if weights is None else grads * weights[:, None], lr)
    else:
        store.push_bags(ids, bags, grads, lr)


def weight_gradients(
    store: PoolingLeaf, ids: Tensor, offsets: Tensor, grads: Tensor, mode: Mode = "sum"
) -> Tensor:
    """Gradients [n] of the weights, by the gradients of pull_pooled's result."""
    bags = make_bags(store, ids, offsets, mode, None)
    if mode == "none":
        return (store.pull(ids) * grads).sum(dim=1)
    dots = store.dot_bags(ids, bags, grads)
    return dots if bags.coefficients is None else dots * bags.coefficients


def make_bags(
    store: PoolingLeaf, ids: Tensor, offsets: Tensor, mode: Mode, weights: Tensor | None
) -> Bags:
    """Check a jagged lookup and turn its mode and weights into coefficients."""
    name, n = store.table.name, ids.numel()
    if mode not in ("sum", "mean", "none"):
        raise ValueError(f"table {name!r}: pooling {mode!r}; known are sum, mean and none")
    if offsets.dtype != torch.int64 or offsets.dim() != 1 or offsets.numel() < 1:
        raise ValueError(
            f"table {name!r}: offsets are {offsets.dtype} {list(offsets.shape)}; they must be "
            "torch.int64 [bags + 1]"
        )
    offsets = offsets.contiguous()
    lengths = offsets.diff()
    if int(offsets[0]) != 0 or int(offsets[-1]) != n or bool((lengths < 0).any()):
        raise ValueError(
            f"table {name!r}: offsets go from {int(offsets[0])} to {int(offsets[-1])} over {n} "
            f"ids; they must ascend from 0 to {n}"
        )
    if weights is not None and (weights.dtype != torch.float32 or weights.shape != (n,)):
        raise ValueError(
            f"table {name!r}: weights are {weights.dtype} {list(weights.shape)}; for {n} ids they "
            f"must be torch.float32 [{n}]"
        )
    numbers = torch.arange(len(lengths), dtype=torch.int32)
    bag_of = numbers.repeat_interleave(lengths, output_size=n)
    if mode != "mean":
        return Bags(offsets, bag_of, None if weights is None else weights.detach().contiguous())
    shares = _shares(ids, offsets, bag_of, store.table.padding)
    return Bags(offsets, bag_of, shares if weights is None else shares * weights.detach())


def _shares(ids: Tensor, offsets: Tensor, bag_of: Tensor, padding: int | None) -> Tensor:
    """1 / how many ids the bag of each id has, padding left out: [n]."""
    present = (ids != padding).cumsum(0) if padding is not None else None
    ends = offsets if present is None else F.pad(present, (1, 0))[offsets]
    return (1.0 / ends.diff().clamp(min=1)).index_select(0, bag_of)


# ---- rows that are here already, from whatever store ---------------------------------------------


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
