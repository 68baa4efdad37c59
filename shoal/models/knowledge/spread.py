"""Spread: models whose users and nodes are spread over the whole graph before they are compared."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Facts, Output, Propagated
from shoal.models.knowledge.base import KnowledgeModel
from shoal.models.nn.losses import bpr_loss


class Spread(KnowledgeModel, Propagated):
    """`spread` makes users and nodes of the learned rows; the score is their dot product."""

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.make_tables(options.embedding_size)

    def spread(self, users: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """What rows of all users [num_users, d] and nodes [num_nodes, d] become."""
        raise NotImplementedError  # every such model writes its own

    def propagate(self) -> tuple[Tensor, Tensor]:
        return self.spread(self.embed.whole(self.facts.user_field), self.embed.whole("node"))

    def pair_loss(self, batch: Batch) -> Output:
        """The BPR loss, and half the squared norms of what it compares."""
        users, nodes = self.propagated()
        items, negatives = batch.tensor(self.facts.item_field), self.negatives(batch)
        one = F.embedding(batch.tensor(self.facts.user_field), users)
        right, wrong = (F.embedding(self.item_node[ids], nodes) for ids in (items, negatives))
        size = 0.5 * (one.square().sum() + right.square().sum() + wrong.square().sum())
        loss = bpr_loss(one, right, wrong) + self.options.reg_weight * size
        return Output(loss, negatives.numel())

    def encode_query(self, batch: Batch) -> Tensor:
        return F.embedding(batch.tensor(self.facts.user_field), self.propagated()[0])

    def encode_item(self, ids: Tensor) -> Tensor:
        return F.embedding(self.item_node[ids], self.propagated()[1])
