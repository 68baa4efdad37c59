"""FDSA: Feature-level Deeper Self-Attention Network for Sequential Recommendation.

Zhang et al., IJCAI 2019. One transformer reads the items, a second one what they are:

    f = sum of softmax(W f_k + b) f_k over the features of an item
    state = W [state of items, state of features]        score = <state, item>
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.transformer import Transformer
from shoal.models.sequential.featured import FeaturedSASRec


class FDSA(FeaturedSASRec):
    """SASRec beside another one of features."""

    def __init__(self, options: FeaturedSASRec.Options, facts: Facts):
        super().__init__(options, facts)
        size, std = options.hidden_size, options.initializer_range
        self.weigh = nn.Linear(size, 1)
        self.feature_positions = nn.Parameter(torch.randn(facts.max_len, size) * std)
        self.feature_transformer = Transformer.of(options, size, std, causal=True)
        self.join = nn.Linear(2 * size, size)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        pads = history == 0
        items = self.encode(self.embed.field("history", batch), pads)
        every = self.features(history)  # [b, l, features, d]
        features = (self.weigh(every).softmax(2) * every).sum(2)
        features = self.dropout(features + self.feature_positions[: history.shape[1]])
        return self.join(torch.cat([items, self.feature_transformer(features, pads)], 2))

    def states_at(self, batch: Batch, places: Tensor) -> Tensor:
        return self.states(batch).flatten(0, 1)[places]
