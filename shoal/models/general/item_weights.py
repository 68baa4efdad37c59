"""What models share that are one matrix of item-to-item weights, made of the data in one pass.

score(user, item) = sum of W[i, item] over the items i that the user took
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.models.base import Facts, Retrieval
from shoal.models.nn.user_items import Taken, multi_hot


class ItemWeights(Retrieval):
    """Scores by item-to-item weights; a new user needs no training, only items."""

    trainable: ClassVar[bool] = False
    weights: Tensor  # [num_items, num_items], row: the item that is scored

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.taken = Taken(facts.train_users, facts.train_items, facts.num_users, facts.num_items)
        weights = self.solve(self.taken.together())
        self.register_buffer("weights", weights.T.float().contiguous())

    def solve(self, together: Tensor) -> Tensor:
        """W, from how many users took both of two items: [items, items] -> the same."""
        raise NotImplementedError  # every such model writes its own

    def fold_in(self, lists: Jagged) -> Tensor:
        return multi_hot(lists, self.facts.num_items)

    def encode_query(self, batch: Batch) -> Tensor:
        return self.fold_in(self.taken.lists(batch.tensor(self.facts.user_field)))

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.weights[ids]

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        if items.dim() == 1:
            return super().score(batch, items)
        return (self.encode_query(batch) @ self.weights.T).gather(1, items)
