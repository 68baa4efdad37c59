"""SLIM: Sparse Linear Methods for Top-N Recommender Systems, Ning and Karypis, ICDM 2011.

    W = argmin of 1/2 |X - X W|^2 + l2/2 |W|^2 + l1 |W|,  W >= 0, diag(W) = 0

by coordinate descent: row after row of W, for many columns at once, until nothing moves. With
G = X^T X, W[i, j] can be above 0 only where G[i, j] is above l1: nothing else is computed.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.models.general.item_weights import SparseWeights
from shoal.models.nn.closed_form import check_memory
from shoal.models.options import Count, NotNegative, Positive


class SLIM(SparseWeights):
    """Few weights, none of them below 0."""

    class Options(SparseWeights.Options):
        l1: NotNegative = 2.0  # L1 penalty: how often two items must occur together to get a weight
        l2: Positive = 20.0
        sweeps: Count = 30
        tolerance: float = 1e-4  # sweeps end when the largest change is below this

    def weight_blocks(self) -> Iterator[Tensor]:
        count = self.facts.num_items
        check_memory(f"SLIM of {count:,} items", 8 * count**2)
        common = torch.empty(count, count)
        for first, block in self.taken.common():
            common[first : first + len(block)] = block
        for columns in torch.arange(count).split(1 << 11):
            right = common[:, columns]
            rows = (right > self.options.l1).any(1).nonzero().view(-1)
            weights = self._descend(common[rows][:, rows], right[rows], rows, columns)
            yield right.new_zeros(len(columns), count).index_copy_(1, rows, weights.T)

    def _descend(self, left: Tensor, right: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """W of some rows and columns [r, c], of G [r, r] and [r, c]. 64 rows share a product."""
        weights = torch.zeros_like(right)
        own, is_self = left.diagonal(), rows.unsqueeze(1) == columns
        for _ in range(self.options.sweeps):
            moved = 0.0
            for block in torch.arange(len(rows)).split(64):
                first, last = int(block[0]), int(block[-1]) + 1
                square, new = left[first:last, first:last], weights[first:last]
                before = new.clone()
                rest = right[first:last] - left[first:last] @ weights + square @ new
                for k in range(last - first):
                    row = rest[k] - square[k] @ new + own[first + k] * new[k] - self.options.l1
                    new[k] = row.clamp_(min=0.0).masked_fill_(is_self[first + k], 0.0)
                    new[k] /= own[first + k] + self.options.l2
                moved = max(moved, float((new - before).abs().max()))
            if moved < self.options.tolerance:
                break
        return weights
