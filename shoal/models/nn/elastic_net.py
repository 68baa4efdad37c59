"""Item-to-item weights with an L1 and an L2 penalty, by coordinate descent.

    W = argmin of 1/2 |X - X W|^2 + l2/2 |W|^2 + l1 |W|

Row after row of W, for many columns at once, until nothing moves. With G = X^T X, a weight that may
not be negative can be above 0 only where G[i, j] is above l1: nothing else is computed then.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.nn.user_items import UserItems


@dataclass(frozen=True)
class Penalties:
    """What the weights of items must obey, and when the descent ends."""

    l1: float
    l2: float
    sweeps: int  # passes over all items, at most
    tolerance: float  # sweeps end when the largest change is below this
    positive: bool = True  # no weight is below 0
    hide_item: bool = True  # an item has no weight for itself


def elastic_net(taken: UserItems, penalties: Penalties) -> Iterator[Tensor]:
    """The weights that each item is scored by, some items at a time: [b, num_items]."""
    count = taken.num_items
    common = torch.empty(count, count)
    for first, block in taken.common():
        common[first : first + len(block)] = block
    for columns in torch.arange(count).split(1 << 11):
        right = common[:, columns]
        if penalties.positive:
            rows = (right > penalties.l1).any(1).nonzero().view(-1)
        else:
            rows = common.diagonal().nonzero().view(-1)
        weights = _descend(common[rows][:, rows], right[rows], rows, columns, penalties)
        yield right.new_zeros(len(columns), count).index_copy_(1, rows, weights.T)


def _descend(
    left: Tensor, right: Tensor, rows: Tensor, columns: Tensor, penalties: Penalties
) -> Tensor:
    """W of some rows and columns [r, c], of G [r, r] and [r, c]. 64 rows share a product."""
    weights = torch.zeros_like(right)
    own, is_self = left.diagonal(), rows.unsqueeze(1) == columns
    for _ in range(penalties.sweeps):
        moved = 0.0
        for block in torch.arange(len(rows)).split(64):
            first, last = int(block[0]), int(block[-1]) + 1
            square, new = left[first:last, first:last], weights[first:last]
            before = new.clone()
            rest = right[first:last] - left[first:last] @ weights + square @ new
            for k in range(last - first):
                row = rest[k] - square[k] @ new + own[first + k] * new[k]
                if penalties.positive:
                    row = (row - penalties.l1).clamp_(min=0.0)
                else:
                    row = F.softshrink(row, penalties.l1)
                if penalties.hide_item:
                    row.masked_fill_(is_self[first + k], 0.0)
                new[k] = row / (own[first + k] + penalties.l2)
            moved = max(moved, float((new - before).abs().max()))
        if moved < penalties.tolerance:
            break
    return weights
