"""Rows of lists, pooled to one row each.

    rows      r1 r2 r3 | r4 |            offsets 0 3 4 4
    sum       r1 + r2 + r3 | r4 | 0
    mean      (r1 + r2 + r3) / 3 | r4 | 0

Weights multiply the rows. An empty list has zeros. The padding id counts as absent: its row is
zeros, and no mean counts it. Models pool in the lookup (rows/bags.py); `pool_rows` is for rows that
are at hand.
"""

from __future__ import annotations

from typing import Literal

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
    """Rows [n, dim] of ids [n], pooled: offsets [bags + 1] -> [bags, dim], without a gradient."""
    check_pooling(how)
    out = sum_bags(rows, offsets, weights=weights)
    return out.mul_(shares_of(ids, offsets, padding)) if how == "mean" else out


def check_pooling(how: str) -> None:
    """Refuse what is not linear: that is the models' own."""
    if how not in ("sum", "mean"):
        raise ValueError(f"pooling {how!r}; known are sum and mean")


def shares_of(ids: Tensor, offsets: Tensor, padding: int | None) -> Tensor:
    """1 / how many ids each bag has, padding left out: [bags, 1]."""
    present = (ids != padding).cumsum(0) if padding is not None else None
    ends = offsets if present is None else F.pad(present, (1, 0))[offsets]
    return (1.0 / ends.diff().clamp(min=1)).unsqueeze(1)
