"""SLIM: Sparse Linear Methods for Top-N Recommender Systems, Ning and Karypis, ICDM 2011.

    W = argmin of 1/2 |X - X W|^2 + l2/2 |W|^2 + l1 |W|,  W >= 0, diag(W) = 0

by coordinate descent: row i of W, for all columns at once, until nothing moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shoal.models.general.item_weights import ItemWeights


class SLIM(ItemWeights):
    """Few weights, none of them below 0."""

    @dataclass
    class Options(ItemWeights.Options):
        l1: float = 2.0  # times that two items must come together to be heard at all
        l2: float = 20.0
        sweeps: int = 30
        tolerance: float = 1e-4  # of the largest change in a sweep

        def __post_init__(self) -> None:
            if self.l1 < 0.0 or not self.l2 > 0.0 or self.sweeps < 1:
                raise ValueError(
                    f"l1 is {self.l1}, l2 {self.l2}, sweeps {self.sweeps}; l1 at least 0, l2 above "
                    "0, sweeps at least 1"
                )

    def solve(self, together: Tensor) -> Tensor:
        together = together.float()
        weights = together.new_zeros(together.shape)
        items = (together.diagonal() > 0).nonzero().view(-1).tolist()
        for _ in range(self.options.sweeps):
            moved = 0.0
            for i in items:
                own = together[i, i]
                rest = together[i] - together[i] @ weights + own * weights[i]
                new = (rest - self.options.l1).clamp(min=0.0) / (own + self.options.l2)
                new[i] = 0.0
                moved = max(moved, float((new - weights[i]).abs().max()))
                weights[i] = new
            if moved < self.options.tolerance:
                break
        return weights
