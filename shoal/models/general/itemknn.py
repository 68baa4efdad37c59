"""ItemKNN: Evaluation of Item-Based Top-N Recommendation Algorithms, Deshpande and Karypis, TOIS
2004.

Items are alike when the same users took them; each listens to its k nearest ones:

    W[i, j] = |i and j| / (sqrt(|i| |j|) + shrink), of the k largest i for every j

With weights of interactions (data.sample_weight) an item is the vector of its users' weights: |i|
is the sum of their squares, |i and j| that of their products.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.models.general.item_weights import SparseWeights
from shoal.models.nn.user_items import nearest
from shoal.models.options import Count, NotNegative


class ItemKNN(SparseWeights):
    """Neighbourhoods of items by cosine."""

    reads_weights = True
    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "knn_method": ("item", "neighbours of users are the model UserKNN")
    }

    class Options(SparseWeights.Options):
        k: Count = 100
        shrink: NotNegative = 0.0
        # similarity of two items' users; dot: their plain product, not divided by norms
        similarity: Literal["cosine", "dot"] = "cosine"

    def weight_blocks(self) -> Iterator[Tensor]:
        options = self.options
        for best, index in nearest(self.taken, options.k, options.shrink, options.similarity):
            yield torch.zeros(len(best), self.facts.num_items).scatter(1, index, best)
