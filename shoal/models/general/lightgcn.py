"""LightGCN: Simplifying and Powering Graph Convolution Network, He et al., SIGIR 2020.

Vectors spread over the graph of users and items, and the layers are averaged:

    E(k+1) = D^-1/2 A D^-1/2 E(k)        E = mean of E(0) ... E(n_layers)

Only E(0) is learned, by the BPR loss plus an L2 term on the E(0) of the nodes in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Init, Table
from shoal.models.base import Facts, Output, Retrieval
from shoal.models.nn.losses import bpr_loss


class _Spread(torch.autograd.Function):
    """adjacency @ x for a symmetric adjacency, whose gradient is therefore adjacency @ grad.

    The matrix is in compressed rows; a bag-sum over them is the same product, and on CPUs without
    MKL two to three times faster than torch's sparse matmul.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, starts: Tensor, neighbours: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(starts, neighbours, weights)
        return F.embedding_bag(
            neighbours, x, starts, mode="sum", per_sample_weights=weights, include_last_offset=True
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _Spread.apply(grads[0].contiguous(), *ctx.saved_tensors), None, None, None


class LightGCN(Retrieval):
    """Graph convolution without weights: every user and item is a node."""

    starts: Tensor  # [nodes + 1]: node n's neighbours are neighbours[starts[n]:starts[n + 1]]
    neighbours: Tensor  # [2 * edges]
    weights: Tensor  # [2 * edges]

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
        for name, value in zip(("starts", "neighbours", "weights"), self._graph(), strict=True):
            self.register_buffer(name, value, persistent=False)  # the data makes it anew
        self._cached: tuple[Tensor, Tensor] | None = None

    def _graph(self) -> tuple[Tensor, Tensor, Tensor]:
        """The normalised adjacency in compressed rows; items are numbered after the users."""
        nodes = self.facts.num_users + self.facts.num_items
        users, items = self.facts.train_users, self.facts.train_items + self.facts.num_users
        # an edge is there or not: repeated interactions count once; `unique` also sorts by node
        edges = torch.unique(torch.cat([users * nodes + items, items * nodes + users]))
        ends, neighbours = edges // nodes, edges % nodes
        degrees = torch.bincount(ends, minlength=nodes)
        starts = F.pad(degrees.cumsum(0), (1, 0))
        return starts, neighbours, (degrees[ends] * degrees[neighbours]).double().rsqrt().float()

    def propagate(self) -> tuple[Tensor, Tensor]:
        """E(0) and E of all nodes, each [num_users + num_items, d]."""
        if self._cached is not None:
            return self._cached
        first = torch.cat(
            [self.embed.whole(self.facts.user_field), self.embed.whole(self.facts.item_field)]
        )
        layer = total = first
        for _ in range(self.options.n_layers):
            layer = _Spread.apply(layer, self.starts, self.neighbours, self.weights)
            total = total + layer
        final = total / (self.options.n_layers + 1)
        if not self.training:  # rows rest while a model is evaluated, so once is enough
            self._cached = first, final
        return first, final

    def train(self, mode: bool = True) -> LightGCN:
        """As in torch; either way, what was propagated before is forgotten."""
        self._cached = None
        return super().train(mode)

    def forward(self, batch: Batch) -> Output:
        if "neg_item" not in batch.ids:
            raise ValueError(
                "LightGCN learns from negatives and has none; set train.negatives.num to 1"
            )
        users: Tensor = batch.ids[self.facts.user_field].unsqueeze(1)  # type: ignore[union-attr]
        items: Tensor = batch.ids[self.facts.item_field].unsqueeze(1)  # type: ignore[union-attr]
        negatives: Tensor = batch.ids["neg_item"]  # type: ignore[assignment]
        count, k = negatives.numel(), negatives.shape[1]

        first, final = self.propagate()
        offset = self.facts.num_users
        nodes = torch.cat([users, items + offset, negatives + offset], 1)  # [b, 2 + k]
        vectors = F.embedding(nodes, final)
        loss = bpr_loss(vectors[:, 0], vectors[:, 1], vectors[:, 2:])

        size = torch.linalg.vector_norm(F.embedding(nodes, first), dim=-1)  # [b, 2 + k]
        if self.options.require_pow:
            size = 0.5 * size.square()
        # each of the k pairs of a sample holds its user and its item once
        penalty = k * size[:, :2].sum() + size[:, 2:].sum()
        return Output(loss + self.options.reg_weight * penalty, count)

    def encode_query(self, batch: Batch) -> Tensor:
        users: Tensor = batch.ids[self.facts.user_field]  # type: ignore[assignment]
        return F.embedding(users, self.propagate()[1])

    def encode_item(self, ids: Tensor) -> Tensor:
        return F.embedding(ids + self.facts.num_users, self.propagate()[1])
