"""Spread: models whose users and nodes are spread over the whole graph before they are compared."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Init, Table
from shoal.models.base import Facts, Output, Retrieval
from shoal.models.knowledge.base import KnowledgeModel
from shoal.models.nn.losses import bpr_loss


class Spread(KnowledgeModel, Retrieval):
    """`propagate` makes users and nodes of the learned rows; the score is their dot product."""

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        size, xavier = options.embedding_size, Init("xavier")
        users = Table("user", size, facts.num_users, xavier)
        nodes = Table("node", size, self.num_nodes, xavier)
        self.embed = Embeddings({facts.user_field: users, "node": nodes})
        self._cached: tuple[Tensor, Tensor] | None = None

    def propagate(self, users: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """What rows of all users [num_users, d] and nodes [num_nodes, d] become."""
        raise NotImplementedError  # every such model writes its own

    def every(self) -> tuple[Tensor, Tensor]:
        """All users and all nodes, spread."""
        if self._cached is not None:
            return self._cached
        whole = self.embed.whole(self.facts.user_field), self.embed.whole("node")
        made = self.propagate(*whole)
        if not self.training:  # rows rest while a model is evaluated, so once is enough
            self._cached = made
        return made

    def train(self, mode: bool = True) -> Spread:
        """As in torch; either way, what was propagated before is forgotten."""
        self._cached = None
        return super().train(mode)

    def pair_loss(self, batch: Batch) -> Output:
        """The BPR loss, and half the squared norms of what it compares."""
        users, items, negatives = self.samples_of(batch)
        of_users, of_nodes = self.every()
        one = F.embedding(users, of_users)
        right = F.embedding(self.item_node[items], of_nodes)
        wrong = F.embedding(self.item_node[negatives], of_nodes)
        size = 0.5 * (one.square().sum() + right.square().sum() + wrong.square().sum())
        loss = bpr_loss(one, right, wrong) + self.options.reg_weight * size
        return Output(loss, negatives.numel())

    def encode_query(self, batch: Batch) -> Tensor:
        return F.embedding(batch.tensor(self.facts.user_field), self.every()[0])

    def encode_item(self, ids: Tensor) -> Tensor:
        return F.embedding(self.item_node[ids], self.every()[1])
