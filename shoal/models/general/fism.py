"""FISM: Factored Item Similarity Models for Top-N Recommender Systems, Kabbur et al., KDD 2013.

Item-to-item weights as a product of two narrow tables; an item is never evidence for itself:

    y_ui = b_u + b_i + n^-alpha * <sum of p_j over the n items j that u took, but i, q_i>

trained as a yes/no question, with log loss, plus reg * (|P| + |Q|), the lengths of both tables. b_u
is the same for all items of a user: it helps to learn and is no part of a score.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Embeddings, Facts, Init, Jagged, Output, Retrieval, Table
from shoal.models.nn.losses import pointwise_loss
from shoal.models.nn.user_items import UserItems
from shoal.models.options import Share


class FISM(Retrieval):
    """A user is the sum of the items taken, so a new one is folded in.

    sums of a user's rows [b, d]    items and k negatives [b, 1 + k, d]    logits [b, 1 + k]
    """

    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "split_to": "evaluation goes block by block by itself"
    }

    class Options(Retrieval.Options):
        embedding_size: int = 64
        # weights of the lengths of the tables of items taken, and of items scored
        reg_weights: list[float] = field(default_factory=lambda: [1e-2, 1e-2])
        alpha: Share = 0.0  # 0: the sum over the items taken; 1: their mean

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, normal = options.embedding_size, Init("normal", 0.01)
        zeros = Init("constant", 0.0)
        self.embed = Embeddings(
            {
                "taken": Table("item_taken", width, facts.num_items, normal, padding=0),
                "item": Table("item", width, facts.num_items, normal, padding=0),
                "item_bias": Table("item_bias", 1, facts.num_items, zeros, padding=0),
                "user_bias": Table("user_bias", 1, facts.num_users, zeros),
            }
        )
        self.taken = UserItems(
            facts.train_users, facts.train_items, facts.num_users, facts.num_items
        )

    def forward(self, batch: Batch) -> Output:
        users = batch.tensor(self.facts.user_field)
        positives = batch.tensor(self.facts.item_field).unsqueeze(1)
        items = torch.cat([positives, self.negatives(batch)], 1)  # [b, 1 + k]
        different, place = users.unique(return_inverse=True)
        lists = self.taken.lists(different)
        total = F.embedding(place, self._sums(lists)).unsqueeze(1)  # [b, 1, d]
        others = F.embedding(place, lists.lengths.float().unsqueeze(1)).repeat(1, items.shape[1])
        own = self.embed.rows("taken", positives)
        total = torch.cat([total - own, total.expand(-1, items.shape[1] - 1, -1)], 1)
        others[:, 0] -= 1.0
        pooled = total * others.clamp(min=1.0).pow(-self.options.alpha).unsqueeze(2)
        logits = (pooled * self.embed.rows("item", items)).sum(2)
        logits = logits + self.embed.rows("item_bias", items).squeeze(2)
        logits = logits + self.embed.rows("user_bias", users)
        loss = pointwise_loss(logits)
        for name, weight in zip(("taken", "item"), self.options.reg_weights):
            if weight:
                loss = loss + logits.numel() * weight * self.embed.whole(name).norm()
        return Output(loss, logits.numel())

    def _sums(self, lists: Jagged) -> Tensor:
        return self.embed.pooled("taken", Batch(len(lists), {"taken": lists}))

    def fold_in(self, lists: Jagged) -> Tensor:
        lengths = lists.lengths.clamp(min=1).float().unsqueeze(1)
        return F.pad(self._sums(lists) * lengths.pow(-self.options.alpha), (0, 1), value=1.0)

    def encode_query(self, batch: Batch) -> Tensor:
        return self.fold_in(self.taken.lists(batch.tensor(self.facts.user_field)))

    def encode_item(self, ids: Tensor) -> Tensor:
        rows = self.embed.rows("item", ids)
        return torch.cat([rows, self.embed.rows("item_bias", ids)], -1)
