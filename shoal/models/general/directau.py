"""DirectAU: Towards Representation Alignment and Uniformity in Collaborative Filtering, Wang et
al., KDD 2022.

Vectors on a sphere: those of a user and an item taken are near, and all lie apart.

    loss = mean of |u - i|^2 + gamma / 2 * (ln mean of exp(-2 |u - u'|^2) + the same of items)

Means are over the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Table
from shoal.models.base import Facts, Output, Retrieval
from shoal.models.nn.in_batch import uniformity


class DirectAU(Retrieval):
    """Matrix factorisation that learns from positives alone."""

    @dataclass
    class Options(Retrieval.Options):
        embedding_size: int = 64
        gamma: float = 1.0  # weight of uniformity

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives": None}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        users = Table("user", options.embedding_size, facts.num_users)
        items = Table("item", options.embedding_size, facts.num_items)
        self.embed = Embeddings({facts.user_field: users, facts.item_field: items})

    def forward(self, batch: Batch) -> Output:
        rows = self.embed(batch, [self.facts.user_field, self.facts.item_field])
        users = F.normalize(rows[self.facts.user_field], dim=-1)
        items = F.normalize(rows[self.facts.item_field], dim=-1)
        near = (users - items).square().sum()
        total = len(self.across(batch.tensor(self.facts.user_field)))
        spread = uniformity(users, self.across) + uniformity(items, self.across)
        # the strategy divides by the count: what is a mean already is multiplied by it
        return Output(near + 0.5 * self.options.gamma * spread * total, batch.size)

    def encode_query(self, batch: Batch) -> Tensor:
        return self.embed.field(self.facts.user_field, batch)

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.embed.rows(self.facts.item_field, ids)
