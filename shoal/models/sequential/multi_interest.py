"""What models of several interests share: as many vectors for a user as there are interests.

    score(item) = the highest of <interest, item>

In training one state is made of the interests by looking at the target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.models.base import Batch, Output
from shoal.models.sequential.base import Sequential


class MultiInterest(Sequential):
    """A sequential model with [b, k, d] interests of each history."""

    samples = "prefixes"

    def interests(self, batch: Batch) -> Tensor:
        """[b, k, d]"""
        raise NotImplementedError  # every such model writes its own

    def chosen(self, interests: Tensor, target: Tensor) -> Tensor:
        """The state that is trained: interests [b, k, d], target vectors [b, d] -> [b, d]."""
        raise NotImplementedError  # every such model writes its own

    def forward(self, batch: Batch) -> Output:
        target = batch.tensor("target")
        negatives = batch.tensor("neg_item") if "neg_item" in batch.ids else None
        wanted = self.embed.rows("target", target)
        return self.loss(self.chosen(self.interests(batch), wanted), target, negatives)

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        interests, vectors = self.asked(self.interests(batch)), self.encode_item(items)
        if items.dim() == 1:
            vectors = vectors.unsqueeze(0)
        best = torch.full((batch.size, items.shape[-1]), -torch.inf, device=items.device)
        for interest in interests.unbind(1):  # [b, k, n] is never held
            best = torch.maximum(best, (vectors @ interest.unsqueeze(2)).squeeze(2))
        return best
