"""SASRecF: SASRec that reads the features of items, as RecBole names it.

What is read at a position is the item and its features, side by side and mixed:

    x = W [item, feature 1, feature 2, ...] + position        then as SASRec

after Self-Attentive Sequential Recommendation, Kang and McAuley, ICDM 2018.
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.item_features import ItemFeatures
from shoal.models.sequential.sasrec import SASRec


class SASRecF(SASRec):
    """Items are recommended by their own vectors; features help to read the history."""

    reads_features = True

    def __init__(self, options: SASRec.Options, facts: Facts):
        super().__init__(options, facts)
        self.cuda_graph_safe = False
        self.state_width = 0  # features are read from whole histories
        size, std = options.hidden_size, options.initializer_range
        self.features = ItemFeatures(type(self).__name__, facts, size, std)
        self.join = nn.Linear((1 + self.features.number) * size, size)
        nn.init.normal_(self.join.weight, std=std)
        with torch.no_grad():
            self.join.weight[:, :size] += torch.eye(size)  # begins as SASRec does
        nn.init.zeros_(self.join.bias)

    def inputs(self, batch: Batch) -> Tensor:
        items = self.embed.field("history", batch)
        features = self.features(batch.tensor("history")).flatten(2)
        return self.join(torch.cat([items, features], 2))
