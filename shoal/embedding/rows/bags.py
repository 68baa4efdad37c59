"""Bags: lists of ids that are read as the sum or the mean of their rows.

    ids      3 5 3 |   | 7          offsets 0 3 3 4; weights, where there are any, w0 w1 w2 w3
    pull     w0 r3 + w1 r5 + w2 r3 | 0 | w3 r7                                  [bags, dim]
    push     gradients g0 g1 g2 of the bags: row 3 gets w0 g0 + w2 g0           [bags, dim]

What belongs to single ids, [ids, dim], is never in memory. A lookup without bags is the case of one
id in each. Sums are made in the order of ids, so the same bits come at every run.

Kernels of the core and of Triton sum while they read rows, and read the gradient of an id's bag
while they update. Every other engine goes by distinct rows (RowEngine.pull_bags and push_bags), as
do rows that are elsewhere (placements/trips.py). A mean is a sum that is divided afterwards, by the
ids of the list: the padding id counts as absent. An empty list has zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.kernels.bags import sum_bags

Pooling = Literal["sum", "mean"]


@dataclass(frozen=True, eq=False)
class Bags:
    """Bags of ids: the offset of each bag, and the weights of the rows."""

    offsets: Tensor  # [bags + 1] int64, from 0 to the number of ids
    weights: Tensor | None = None  # [ids] float32; None: 1 each

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    def to(self, device: torch.device) -> Bags:
        """These bags on another device, contiguous."""
        weights = None if self.weights is None else self.weights.detach().to(device).contiguous()
        return Bags(self.offsets.to(device).contiguous(), weights)

    def bag_of(self, num_ids: int) -> Tensor:
        """The bag of each id: [ids]."""
        numbers = torch.arange(len(self), device=self.offsets.device)
        return numbers.repeat_interleave(self.offsets.diff(), output_size=num_ids)

    def keep_ids(self, keep: Tensor) -> Bags:
        """The bags with only the ids where keep [ids] is True."""
        ends = F.pad(keep.cumsum(0), (1, 0))
        weights = None if self.weights is None else self.weights[keep]
        return Bags(ends[self.offsets], weights)

    def check(self, table: str, num_ids: int) -> None:
        """Refuse what is not bags of so many ids; what stands in offsets the kernels check."""
        offsets, weights = self.offsets, self.weights
        if offsets.dtype != torch.int64 or offsets.dim() != 1 or not len(offsets):
            raise ValueError(
                f"table {table!r}: offsets of lists are {offsets.dtype} {list(offsets.shape)}; "
                "they must be torch.int64 [lists + 1]"
            )
        if weights is None:
            return
        if weights.dtype != torch.float32 or weights.shape != (num_ids,):
            raise ValueError(
                f"table {table!r}: weights of ids are {weights.dtype} {list(weights.shape)}; for "
                f"{num_ids} ids they must be torch.float32 [{num_ids}]"
            )


def join_bags(parts: Sequence[tuple[int, Bags | None]]) -> Bags | None:
    """Bags of several lookups, one after the other; parts: count of ids, and bags, if any."""
    present = [bags for _, bags in parts if bags is not None]
    if not present:
        return None
    if len(parts) == 1:
        return present[0]
    device, offsets, weights, first = present[0].offsets.device, [], [], 0
    weighted = any(bags.weights is not None for bags in present)
    for count, bags in parts:
        if bags is None:
            offsets.append(torch.arange(first, first + count, device=device))
        else:
            offsets.append(bags.offsets[:-1] + first)
        if weighted:
            bag_weights = None if bags is None else bags.weights
            weights.append(torch.ones(count, device=device) if bag_weights is None else bag_weights)
        first += count
    offsets.append(torch.full((1,), first, device=device))
    return Bags(torch.cat(offsets), torch.cat(weights) if weighted else None)


def check_pooling(how: str) -> None:
    """Refuse what is not linear: that is the models' own."""
    if how not in ("sum", "mean"):
        raise ValueError(f"pooling {how!r}; known are sum and mean")


def shares_of(ids: Tensor, offsets: Tensor, padding: int | None) -> Tensor:
    """1 / how many ids each bag has, padding left out: [bags, 1]."""
    present = (ids != padding).cumsum(0) if padding is not None else None
    ends = offsets if present is None else F.pad(present, (1, 0))[offsets]
    return (1.0 / ends.diff().clamp(min=1)).unsqueeze(1)


def pool_rows(
    rows: Tensor,
    ids: Tensor,
    offsets: Tensor,
    how: Pooling = "sum",
    weights: Tensor | None = None,
    padding: int | None = None,
) -> Tensor:
    """Rows [n, dim] of ids [n], at hand, pooled: offsets [bags + 1] -> [bags, dim], no gradient."""
    check_pooling(how)
    out = sum_bags(rows, offsets, weights=weights)
    return out.mul_(shares_of(ids, offsets, padding)) if how == "mean" else out
