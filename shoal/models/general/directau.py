"""DirectAU: Towards Representation Alignment and Uniformity in Collaborative Filtering, Wang et
al., KDD 2022.

Vectors on a sphere: those of a user and an item taken are near, and all are far from each other.

    loss = mean of |u - i|^2 + gamma / 2 * (ln mean of exp(-2 |u - u'|^2) + the same of items)

Means are over the global batch.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Output
from shoal.models.general.bpr import BPR
from shoal.models.nn.losses import Gather


class DirectAU(BPR):
    """BPR's vectors of users and items, learned from positives alone: [b, d] each."""

    cuda_graph_safe = False

    class Options(BPR.Options):
        gamma: float = 1.0  # weight of uniformity

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives": None}

    def forward(self, batch: Batch) -> Output:
        rows = self.embed(batch, [self.facts.user_field, self.facts.item_field])
        users = F.normalize(rows[self.facts.user_field], dim=-1)
        items = F.normalize(rows[self.facts.item_field], dim=-1)
        near = (users - items).square().sum()
        total = len(self.gather_global(batch.tensor(self.facts.user_field)))
        spread = uniformity(users, self.gather_global) + uniformity(items, self.gather_global)
        # the strategy divides by the count: what is a mean already is multiplied by it
        return Output(near + 0.5 * self.options.gamma * spread * total, batch.size)


def uniformity(vectors: Tensor, gather: Gather) -> Tensor:
    """This process's share of ln of the mean of exp(-2 |x - y|^2) over pairs of the global batch.

    vectors [b, d] of length 1. The shares of all processes add up to the whole.
    """
    every = gather(vectors)
    total = len(every)
    near = torch.exp(4.0 * (every @ every.T) - 4.0)  # |x - y|^2 = 2 - 2 <x, y>
    pairs = max(1, total * (total - 1))
    mean = (near.sum() - near.diagonal().sum()) / pairs
    return torch.log(mean.clamp(min=1e-12)) * (len(vectors) / max(1, total))
