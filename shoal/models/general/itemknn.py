"""ItemKNN: Evaluation of Item-Based Top-N Recommendation Algorithms, Deshpande and Karypis, TOIS
2004.

Items are alike when the same users took them; each listens to its k nearest ones:

    W[i, j] = |i and j| / (sqrt(|i| |j|) + shrink), of the k largest i for every j
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.models.general.item_weights import SparseWeights
from shoal.models.nn.user_items import nearest
from shoal.models.options import Count, NotNegative


class ItemKNN(SparseWeights):
    """Neighbourhoods of items by cosine."""

    class Options(SparseWeights.Options):
        k: Count = 100
        shrink: NotNegative = 0.0

    def solve(self) -> Iterator[Tensor]:
        for best, index in nearest(self.taken, self.options.k, self.options.shrink):
            yield torch.zeros(len(best), self.facts.num_items).scatter(1, index, best)
