"""SHAN: Sequential Recommender System based on Hierarchical Attention Network, Ying et al., IJCAI
2018.

The user u asks twice: all items for the long term, then this and the last items for the state:

    long = sum of softmax(<u, relu(W1 x_j + b1)>) x_j
    state = sum of softmax(<u, relu(W2 y + b2)>) y,  y of long and the last short_item_length items
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Init, Output, Table
from shoal.models.nn.transformer import HIDDEN
from shoal.models.options import Count
from shoal.models.sequential.base import NextItem, newest


class SHAN(NextItem):
    """Attention over all that a user took, then over that and the last items."""

    samples = "prefixes"
    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "transform": ("inverse_itemseq", "the model looks for the last items by itself")
    }

    class Options(NextItem.Options):
        embedding_size: int = 64
        short_item_length: Count = 2  # items of the short term
        # L2 penalties: on the vectors that a sample reads, and on the weights of attention
        reg_weight: list[float] = field(default_factory=lambda: [0.01, 0.0001])

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        users = Table("user", width, facts.num_users, Init("normal", width**-0.5))
        self.make_items(width, width**-0.5, {facts.user_field: users})
        self.long, self.short = nn.Linear(width, width), nn.Linear(width, width)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        rows = self.embed(batch, ["history", self.facts.user_field])
        items, user = rows["history"], rows[self.facts.user_field]
        long = _asked(user, items, history == 0, self.long)
        last, pads = newest(items, history, self.options.short_item_length)
        both = torch.cat([long.unsqueeze(1), last], 1)
        return _asked(user, both, torch.cat([torch.zeros_like(pads[:, :1]), pads], 1), self.short)

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        of_rows, of_weights = self.options.reg_weight
        weights = 0.5 * (self.long.weight.square().sum() + self.short.weight.square().sum())
        loss = output.loss + of_weights * weights * output.count
        return replace(output, loss=loss + of_rows * self.row_penalty(batch))


def _asked(user: Tensor, items: Tensor, pads: Tensor, layer: nn.Module) -> Tensor:
    """Items [b, n, d] by the attention of a user [b, d]: [b, d]; pads bool [b, n]."""
    scores = (torch.relu(layer(items)) @ user.unsqueeze(2)).squeeze(2)
    weights = scores.masked_fill(pads, HIDDEN).softmax(1)
    return (weights.unsqueeze(2) * items).sum(1)
