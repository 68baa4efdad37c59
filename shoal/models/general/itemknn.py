"""ItemKNN: Evaluation of Item-Based Top-N Recommendation Algorithms, Deshpande and Karypis, TOIS
2004.

Items are alike when the same users took them; each listens to its k nearest ones:

    W[i, j] = |i and j| / (sqrt(|i| |j|) + shrink), of the k largest i for every j
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.models.general.item_weights import ItemWeights


class ItemKNN(ItemWeights):
    """Neighbourhoods of items by cosine."""

    @dataclass
    class Options(ItemWeights.Options):
        k: int = 100
        shrink: float = 0.0

        def __post_init__(self) -> None:
            if self.k < 1 or self.shrink < 0.0:
                raise ValueError(f"k is {self.k}, shrink {self.shrink}; at least 1, and at least 0")

    def solve(self, together: Tensor) -> Tensor:
        return nearest(together, self.options.k, self.options.shrink)


def nearest(together: Tensor, k: int, shrink: float) -> Tensor:
    """Cosines of things by how often they come together [n, n], the k largest of each column."""
    sizes = together.diagonal().sqrt()
    alike = together / (sizes * sizes.unsqueeze(1) + shrink + 1e-6)
    alike.fill_diagonal_(0.0)
    best, index = alike.topk(min(k, len(alike)), dim=0)
    return torch.zeros_like(alike).scatter(0, index, best)
