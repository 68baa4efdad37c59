"""LightGCN: Simplifying and Powering Graph Convolution Network, He et al., SIGIR 2020.

Vectors spread over the graph of users and items, and the layers are averaged:

    E(k+1) = D^-1/2 A D^-1/2 E(k)        E = mean of E(0) ... E(n_layers)

Only E(0) is learned, by the BPR loss plus an L2 term on the E(0) of the nodes in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Init, Table
from shoal.models.base import Facts, Output, Retrieval
from shoal.models.nn.graph import Graph
from shoal.models.nn.losses import length_sum, placed_bpr_loss


class LightGCN(Retrieval):
    """Graph convolution without weights: every user and item is a node."""

    cuda_graph_safe = True

    @dataclass
    class Options(Retrieval.Options):
        embedding_size: int = 64
        n_layers: int = 2
        reg_weight: float = 1e-5
        require_pow: bool = False  # True: the paper's ½‖e‖² per node; False: ‖e‖

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        users = Table("user", options.embedding_size, facts.num_users, Init("xavier"))
        items = Table("item", options.embedding_size, facts.num_items, Init("xavier"))
        self.embed = Embeddings(
            {facts.user_field: users, facts.item_field: items, "neg_item": items}
        )
        self.graph = Graph(facts.train_users, facts.train_items, facts.num_users, facts.num_items)
        self._cached: tuple[Tensor, Tensor] | None = None

    def propagate(self) -> tuple[Tensor, Tensor]:
        """E(0) and E of all nodes, each [num_users + num_items, d]."""
        if self._cached is not None:
            return self._cached
        first = self.first_layer()
        final = self.last_layer(first)
        if not self.training:  # rows rest while a model is evaluated, so once is enough
            self._cached = first, final
        return first, final

    def first_layer(self) -> Tensor:
        """The learned vectors of all nodes: [num_users + num_items, d]."""
        return torch.cat(
            [self.embed.whole(self.facts.user_field), self.embed.whole(self.facts.item_field)]
        )

    def last_layer(self, first: Tensor) -> Tensor:
        """What spreading makes of them: one vector for each node."""
        return self.graph.mean(first, self.options.n_layers)

    def train(self, mode: bool = True) -> LightGCN:
        """As in torch; either way, what was propagated before is forgotten."""
        self._cached = None
        return super().train(mode)

    def nodes(self, batch: Batch) -> Tensor:
        """Nodes of users, items and negatives: [b, 2 + k]."""
        if "neg_item" not in batch.ids:
            name = type(self).__name__
            raise ValueError(
                f"{name} learns from negatives and has none; set train.negatives.num to 1"
            )
        users = batch.tensor(self.facts.user_field).unsqueeze(1)
        items = batch.tensor(self.facts.item_field).unsqueeze(1)
        negatives, offset = batch.tensor("neg_item"), self.facts.num_users
        return torch.cat([users, items + offset, negatives + offset], 1)

    def forward(self, batch: Batch) -> Output:
        nodes = self.nodes(batch)
        return self.pair_loss(nodes, *self.propagate())

    def pair_loss(self, nodes: Tensor, first: Tensor, final: Tensor) -> Output:
        """The BPR loss of nodes [b, 2 + k], and the L2 term on their learned vectors."""
        size, k = nodes.shape[0], nodes.shape[1] - 2
        nodes = nodes.T.contiguous()  # [2 + k, b]: vectors of a kind lie together
        loss = placed_bpr_loss(final, nodes)
        # each of the k pairs of a sample holds its user and its item once
        often = first.new_ones(2 + k, 1)
        often[:2] = k
        often = often.expand(-1, size).reshape(-1)
        often = first.new_zeros(len(first)).index_add_(0, nodes.reshape(-1), often)
        penalty = length_sum(first, often, self.options.require_pow)
        return Output(loss + self.options.reg_weight * penalty, size * k)

    def encode_query(self, batch: Batch) -> Tensor:
        users: Tensor = batch.ids[self.facts.user_field]  # type: ignore[assignment]
        return F.embedding(users, self.propagate()[1])

    def encode_item(self, ids: Tensor) -> Tensor:
        return F.embedding(ids + self.facts.num_users, self.propagate()[1])
