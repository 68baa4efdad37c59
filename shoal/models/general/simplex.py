"""SimpleX: A Simple and Strong Baseline for Collaborative Filtering, Mao et al., CIKM 2021.

A user is a vector and the mean of the items taken; angles decide, and a negative counts only where
it is nearer than a margin:

    h = gamma u + (1 - gamma) V mean(items)
    loss = 1 - cos(h, i) + weight / k * sum of max(0, cos(h, j) - margin)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Init, Table
from shoal.models.base import Facts, Output, Retrieval
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.taken import Taken


class SimpleX(Retrieval):
    """Cosine contrastive loss with many negatives."""

    @dataclass
    class Options(Retrieval.Options):
        embedding_size: int = 64
        margin: float = 0.9
        negative_weight: float = 10.0
        gamma: float = 0.5  # share of the user's own vector
        history_len: int = 50  # items of a user that are looked at
        dropout_prob: float = 0.1

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives.num": 100}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, init = options.embedding_size, Init("xavier_normal")
        users = Table("user", width, facts.num_users, init)
        items = Table("item", width, facts.num_items, init, padding=0)
        self.embed = Embeddings(
            {facts.user_field: users, facts.item_field: items, "neg_item": items, "taken": items}
        )
        self.taken = Taken(facts.train_users, facts.train_items, facts.num_users, facts.num_items)
        self.mix = nn.Linear(width, width, bias=False)
        self.dropout = Dropout(options.dropout_prob)

    def forward(self, batch: Batch) -> Output:
        if "neg_item" not in batch.ids:
            raise ValueError(
                "SimpleX learns from negatives and has none; set train.negatives.num to 100"
            )
        users = self.encode_query(batch)
        items = F.normalize(self.embed.field(self.facts.item_field, batch), dim=-1)
        negatives = F.normalize(self.embed.field("neg_item", batch), dim=-1)  # [b, k, d]
        right = 1.0 - (users * items).sum(1)
        wrong = (negatives @ users.unsqueeze(2)).squeeze(2) - self.options.margin
        weight = self.options.negative_weight / negatives.shape[1]
        return Output(right.sum() + weight * F.relu(wrong).sum(), batch.size)

    def encode_query(self, batch: Batch) -> Tensor:
        ids = batch.tensor(self.facts.user_field)
        taken = self.taken.latest(ids, self.options.history_len)
        total = self.embed.rows("taken", taken).sum(1)
        mean = total / (taken > 0).sum(1, keepdim=True).clamp(min=1)
        users, gamma = self.embed.field(self.facts.user_field, batch), self.options.gamma
        mixed = gamma * users + (1.0 - gamma) * self.mix(mean)
        return F.normalize(self.dropout(mixed), dim=-1)

    def encode_item(self, ids: Tensor) -> Tensor:
        return F.normalize(self.embed.rows(self.facts.item_field, ids), dim=-1)
