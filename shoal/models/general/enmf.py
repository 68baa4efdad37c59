"""ENMF: Efficient Neural Matrix Factorization without Sampling for Recommendation, Chen et al.,
TOIS 2020.

Squared error over all pairs, of which those not taken weigh c. Their sum needs no pair:

    y = <h, u * i>
    loss of a user = sum over taken of ((1 - c) y^2 - 2 y) + c (h * u)^T (Q^T Q) (h * u)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import (
    Batch,
    Embeddings,
    Facts,
    Init,
    Jagged,
    Output,
    Retrieval,
    Table,
)
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.user_items import owners


class ENMF(Retrieval):
    """Matrix factorisation that learns from everything, without negatives."""

    samples = "users"
    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "reg_weight": (0.0, "train.optimizer.weight_decay makes vectors smaller")
    }

    class Options(Retrieval.Options):
        embedding_size: int = 64
        dropout_prob: float = 0.7  # dropout of the user's vector
        negative_weight: float = 0.5  # weight of every pair that was not taken

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives": None}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, init = options.embedding_size, Init("xavier_normal")
        users = Table("user", width, facts.num_users, init)
        items = Table("item", width, facts.num_items, init, padding=0)
        self.embed = Embeddings({facts.user_field: users, "item": items})
        self.dropout = Dropout(options.dropout_prob)
        self.weigh = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, batch: Batch) -> Output:
        lists, weight = batch.ids["taken"], self.options.negative_weight
        assert isinstance(lists, Jagged)
        users = self.dropout(self.embed.field(self.facts.user_field, batch)) * self.weigh
        items = self.embed.whole("item")
        every = ((users @ (items.T @ items)) * users).sum()
        scores = (users[owners(lists)] * items[lists.values]).sum(1)
        taken = ((1.0 - weight) * scores.square() - 2.0 * scores).sum()
        return Output(taken + weight * every, batch.size)

    def encode_query(self, batch: Batch) -> Tensor:
        return self.embed.field(self.facts.user_field, batch) * self.weigh

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.embed.rows("item", ids)
