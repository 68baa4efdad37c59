"""SASRecF: SASRec that reads the features of items, as RecBole names it.

What is read at a position is the item and its features, side by side and mixed:

    x = W [item, feature 1, feature 2, ...] + position        then as SASRec

after Self-Attentive Sequential Recommendation, Kang and McAuley, ICDM 2018.
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.sequential.featured import FeaturedSASRec


class SASRecF(FeaturedSASRec):
    """Items are recommended by their own vectors; features help to read the history."""

    def __init__(self, options: FeaturedSASRec.Options, facts: Facts):
        super().__init__(options, facts)
        size, std = options.hidden_size, options.initializer_range
        self.join = nn.Linear((1 + self.features.number) * size, size)
        nn.init.normal_(self.join.weight, std=std)
        with torch.no_grad():
            self.join.weight[:, :size] += torch.eye(size)  # begins as SASRec does
        nn.init.zeros_(self.join.bias)

    def inputs(self, batch: Batch) -> Tensor:
        items = self.embed.field("history", batch)
        features = self.features(batch.tensor("history")).flatten(2)
        return self.join(torch.cat([items, features], 2))
