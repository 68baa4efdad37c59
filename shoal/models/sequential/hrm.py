"""HRM: Learning Hierarchical Representation Model for Next Basket Recommendation, Wang et al.,
SIGIR 2015.

Two layers of pooling, over the last items and then over the user u and these:

    t = pool of the last high_order items        state = pool of (u, t)        score = <state, item>
"""

import torch
from torch import Tensor

from shoal.models.base import Batch, Facts, Init, Table
from shoal.models.nn.dropout import Dropout
from shoal.models.options import Count
from shoal.models.sequential.base import NextItem, Pooling, newest, pooled


class HRM(NextItem):
    """Max pooling makes the state depend on products of users and items, averages on sums."""

    samples = "prefixes"

    class Options(NextItem.Options):
        embedding_size: int = 64
        high_order: Count = 2  # items of the last basket
        dropout_prob: float = 0.2
        pooling_type_layer_1: Pooling = "max"  # over the last items
        pooling_type_layer_2: Pooling = "max"  # over the user and these

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        users = Table("user", width, facts.num_users, Init("normal", width**-0.5))
        self.make_items(width, width**-0.5, {facts.user_field: users})
        self.dropout = Dropout(options.dropout_prob)

    def states(self, batch: Batch) -> Tensor:
        rows = self.embed(batch, ["history", self.facts.user_field])
        last, pads = newest(rows["history"], batch.tensor("history"), self.options.high_order)
        basket = pooled(last, pads, self.options.pooling_type_layer_1)
        both = torch.stack([rows[self.facts.user_field], basket], 1)
        missing = torch.zeros_like(both[..., 0], dtype=torch.bool)
        return pooled(self.dropout(both), missing, self.options.pooling_type_layer_2)
