"""SimpleX: A Simple and Strong Baseline for Collaborative Filtering, Mao et al., CIKM 2021.

A user is a vector and the mean of the items taken; angles decide, and a negative counts only where
it is nearer than a margin:

    h = gamma u + (1 - gamma) V mean(items)
    loss = 1 - cos(h, i) + weight / k * sum of max(0, cos(h, j) - margin)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Output, Retrieval, Table
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.losses import half_squares
from shoal.models.nn.user_items import UserItems


class SimpleX(Retrieval):
    """Cosine contrastive loss with many negatives."""

    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "aggregator": ("mean", "items of a user count alike")
    }

    class Options(Retrieval.Options):
        embedding_size: int = 64
        margin: float = 0.9  # a negative less like the user than this costs nothing
        negative_weight: float = 10.0
        gamma: float = 0.5  # share of the user's own vector
        history_len: int = 50  # items of a user that are looked at
        dropout_prob: float = 0.1  # dropout of the user's vector
        # weight of half the squared norms of the vectors of a sample: user, item and negatives
        reg_weight: float = 0.0

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives.num": 100}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, init = options.embedding_size, Init("xavier_normal")
        users = Table("user", width, facts.num_users, init)
        items = Table("item", width, facts.num_items, init, padding=0)
        self.embed = Embeddings(user=users, item=items)
        self.taken = UserItems(
            facts.train_users, facts.train_items, facts.num_users, facts.num_items
        )
        self.mix = nn.Linear(width, width, bias=False)
        self.dropout = Dropout(options.dropout_prob)

    def forward(self, batch: Batch) -> Output:
        items, negatives = batch.tensor(self.facts.item_field), self.negatives(batch, 100)
        users, place_users = batch.tensor(self.facts.user_field).unique(return_inverse=True)
        taken = self.taken.lists(users, self.options.history_len)
        # one lookup for all: most items of a batch are there many times
        parts = [items, negatives.flatten(), taken.values]
        ids, place = torch.cat(parts).unique(return_inverse=True)
        rows = self.embed.rows("item", ids)
        of_items, of_negatives, of_taken = place.split([len(part) for part in parts])
        mean = F.embedding_bag(of_taken, rows, taken.offsets, mode="mean", include_last_offset=True)
        queries = self._queries(F.embedding(place_users, self._mixed(users, mean)))
        vectors = F.normalize(rows, dim=-1)
        right = 1.0 - (queries * F.embedding(of_items, vectors)).sum(1)
        near = F.embedding(of_negatives.view_as(negatives), vectors)  # [b, k, d]
        wrong = torch.bmm(near, queries.unsqueeze(2)).squeeze(2) - self.options.margin
        weight = self.options.negative_weight / negatives.shape[1]
        loss = right.sum() + weight * F.relu(wrong).sum()
        if self.options.reg_weight:
            own = F.embedding(place_users, self.embed.rows("user", users))
            right_rows, drawn = F.embedding(of_items, rows), F.embedding(of_negatives, rows)
            loss = loss + self.options.reg_weight * half_squares(own, right_rows, drawn)
        return Output(loss, batch.size)

    def encode_query(self, batch: Batch) -> Tensor:
        users = batch.tensor(self.facts.user_field)
        taken = self.taken.latest(users, self.options.history_len)
        total = self.embed.rows("item", taken).sum(1)
        mean = total / (taken > 0).sum(1, keepdim=True).clamp(min=1)
        return self._queries(self._mixed(users, mean))

    def _mixed(self, users: Tensor, mean: Tensor) -> Tensor:
        """Users [n] with the mean of their items [n, d]: [n, d]."""
        own, gamma = self.embed.rows("user", users), self.options.gamma
        return gamma * own + (1.0 - gamma) * self.mix(mean)

    def _queries(self, mixed: Tensor) -> Tensor:
        return F.normalize(self.dropout(mixed), dim=-1)

    def encode_item(self, ids: Tensor) -> Tensor:
        return F.normalize(self.embed.rows("item", ids), dim=-1)
