"""GRU4RecF: Parallel Recurrent Neural Network Architectures for Feature-rich Session-based
Recommendations, Hidasi et al., RecSys 2016.

One recurrent network reads the items, another one what they are:

    h = GRU(items), g = GRU'(features side by side)        state = W [h, g]
    score(item) = <state, item>
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.item_features import ItemFeatures
from shoal.models.nn.recurrent import GRU
from shoal.models.sequential.base import NextItem


class GRU4RecF(NextItem):
    """The parallel architecture of the paper, trained at every position, both networks together."""

    reads_features = True
    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "selected_features": "data.features says which features are read, and all of them are",
        "pooling_mode": "each feature says how its lists are pooled (data.features.NAME.pooling)",
    }

    class Options(NextItem.Options):
        embedding_size: int = 64
        hidden_size: int = 128
        num_layers: int = 1
        dropout_prob: float = 0.3

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, hidden = options.embedding_size, options.hidden_size
        self.make_items(width)
        self.features = ItemFeatures(type(self).__name__, facts, width)
        self.dropout = Dropout(options.dropout_prob)
        self.item_gru = GRU(width, hidden, options.num_layers)
        self.feature_gru = GRU(width * self.features.number, hidden, options.num_layers)
        self.dense = nn.Linear(2 * hidden, width)

    def states(self, batch: Batch) -> Tensor:
        items = self.dropout(self.embed.field("history", batch))
        features = self.features(batch.tensor("history")).flatten(2)
        return self.dense(torch.cat([self.item_gru(items), self.feature_gru(features)], 2))
