"""AsymKNN: Efficient Top-N Recommendation for Very Large Scale Binary Rated Datasets, Aiolli,
RecSys 2013.

Who takes item j takes item i, too, and the other way round: two chances, which a similarity weighs
one against the other. Each item listens to its k nearest ones, and q makes the nearest louder:

    s[i, j] = P(i | j)^alpha P(j | i)^(1 - alpha) = |i and j| / (|j|^alpha |i|^(1 - alpha))
    W[i, j] = s[i, j]^q / |s^q of j's k nearest|^(2 (1 - beta))

The paper also divides by |user|^beta: that is the same for all items of a user and is left out.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from shoal.models.general.item_weights import SparseWeights
from shoal.models.options import Count, Positive, Share


class AsymKNN(SparseWeights):
    """Neighbourhoods of items by an asymmetric cosine."""

    class Options(SparseWeights.Options):
        k: Count = 100
        alpha: Share = 0.5  # 1: how many takers of the scored item took the other; 0: the reverse
        q: Positive = 1.0  # power of a similarity
        beta: Share = 1.0  # 1: sums of similarities as they are; less: divided by their length
        knn_method: Literal["item"] = "item"  # whose neighbours; those of users are in UserKNN

    def weight_blocks(self) -> Iterator[Tensor]:
        options, count = self.options, self.facts.num_items
        takers = torch.bincount(self.taken.items, minlength=count).clamp(min=1).float()
        for first, common in self.taken.common():
            scored = torch.arange(first, first + len(common))
            alike = common / takers[scored].pow(options.alpha).unsqueeze(1)
            alike /= takers.pow(1.0 - options.alpha)
            alike[torch.arange(len(scored)), scored] = 0.0
            best, index = alike.topk(min(options.k, count), dim=1)
            best = best.pow(options.q)
            lengths = best.norm(dim=1, keepdim=True).clamp(min=1e-6)
            best /= lengths.pow(2.0 * (1.0 - options.beta))
            yield torch.zeros(len(best), count).scatter(1, index, best)
