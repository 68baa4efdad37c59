"""What models share that are one matrix of item-to-item weights, made of the data in one pass.

score(user, item) = sum of W[i, item] over the items i that the user took
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from shoal.data.batch import Batch
from shoal.models.base import Facts, Model
from shoal.models.nn.taken import Taken


class ItemWeights(Model):
    """Scores by item-to-item weights; a new user needs no training, only items."""

    trainable: ClassVar[bool] = False
    weights: Tensor  # [num_items, num_items], row: an item that was taken

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.taken = Taken(facts.train_users, facts.train_items, facts.num_users, facts.num_items)
        self.register_buffer("weights", self.solve(self.taken.together()).float())

    def solve(self, together: Tensor) -> Tensor:
        """The weights, from how many users took both of two items: [items, items], float64."""
        raise NotImplementedError  # every such model writes its own

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        taken = self.taken.matrix(batch.tensor(self.facts.user_field))
        if items.dim() == 1:
            return taken @ self.weights[:, items]
        return torch.einsum("bi,ibn->bn", taken, self.weights[:, items])
