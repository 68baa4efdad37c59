"""KnowledgeModel: what models that read a knowledge graph share.

Nodes are the entities of the graph and, behind them, those items that are no entity: every item is
a node. Triples for the knowledge part of a loss are drawn with the samples of a batch, one each, so
that a loss does not depend on how a batch is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.models.base import Facts, Model, Output
from shoal.models.nn.dropout import uniform_like


@dataclass(frozen=True)
class Triples:
    """Triples and, for each, a tail drawn at random: int64 [n] each."""

    heads: Tensor
    relations: Tensor
    tails: Tensor
    others: Tensor


class KnowledgeModel(Model):
    """Learns from pairs (item, negative) and from triples (head, relation, tail)."""

    heads: Tensor  # [triples]
    relations: Tensor
    tails: Tensor
    item_node: Tensor  # [num_items]

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        graph = facts.knowledge
        if graph is None or not len(graph.heads):
            raise ValueError(
                f"{type(self).__name__} reads a knowledge graph and the data has none; load it "
                "with data.load={inter: ['*'], kg: ['*'], link: ['*']} from NAME.kg and NAME.link"
            )
        self.num_entities, self.num_relations = graph.num_entities, graph.num_relations
        alone = graph.item_entity == 0
        alone[0] = False
        behind = graph.num_entities + alone.long().cumsum(0) - 1
        self.num_nodes = graph.num_entities + int(alone.sum())
        made = {
            "heads": graph.heads,
            "relations": graph.relations,
            "tails": graph.tails,
            "item_node": torch.where(alone, behind, graph.item_entity),
        }
        for name, value in made.items():
            self.register_buffer(name, value.long(), persistent=False)  # the data makes it anew

    def samples_of(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Users [b], items [b] and negatives [b, k]."""
        if "neg_item" not in batch.ids:
            raise ValueError(
                f"{type(self).__name__} learns from negatives and has none; set "
                "train.negatives.num to 1"
            )
        items = batch.tensor(self.facts.item_field)
        return batch.tensor(self.facts.user_field), items, batch.tensor("neg_item")

    def draw(self, size: int) -> Triples:
        """A triple for each sample of the batch, and a tail that belongs to no one."""
        numbers = uniform_like(torch.empty(size, 2, device=self.heads.device))
        total, tails = len(self.heads), self.num_entities - 1
        chosen = (numbers[:, 0] * total).long().clamp(max=total - 1)
        others = 1 + (numbers[:, 1] * tails).long().clamp(max=tails - 1)
        return Triples(self.heads[chosen], self.relations[chosen], self.tails[chosen], others)


def pointwise(right: Tensor, wrong: Tensor) -> Output:
    """Cross entropy of scores of items [b] against 1 and of negatives [b, k] against 0."""
    loss = -F.logsigmoid(right).sum() - F.logsigmoid(-wrong).sum()
    return Output(loss, right.numel() + wrong.numel())


class _Ordered(torch.autograd.Function):
    """x[order] of a permutation: the gradient is put back in order, not added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].index_select(0, ctx.saved_tensors[0]), None, None


def moved_by(vectors: Tensor, by: Tensor, matrices: Tensor) -> Tensor:
    """Vectors [n, ..., d] times the matrix [relations, d, e] of each relation [n]: [n, ..., e]."""
    if torch.compiler.is_exporting():  # a graph has no sizes that depend on values
        return torch.einsum("n...d,nde->n...e", vectors, matrices[by])
    order = by.argsort(stable=True)  # a product for each relation, not one for each vector
    inverse = torch.empty_like(order).index_copy_(0, order, torch.arange(len(by), device=by.device))
    sizes = torch.bincount(by, minlength=len(matrices)).tolist()
    parts = _Ordered.apply(vectors, order, inverse).split(sizes)
    moved = torch.cat([part @ matrix for part, matrix in zip(parts, matrices)])
    return _Ordered.apply(moved, inverse, order)


class TransR(nn.Module):
    """A relation moves heads to tails, in a space of its own: |M_r h + r - M_r t|^2 is small.

    Lin et al., AAAI 2015. Without matrices it is TransE, Bordes et al., NIPS 2013.
    """

    def __init__(self, relations: int, dim: int, size: int, matrices: bool = True):
        super().__init__()
        self.relations = nn.Parameter(torch.randn(relations, size) * size**-0.5)
        self.matrices: nn.Parameter | None = None
        if matrices:
            self.matrices = nn.Parameter(torch.randn(relations, dim, size) * dim**-0.5)

    def forward(self, relations: Tensor, heads: Tensor, tails: Tensor, others: Tensor) -> Tensor:
        """Sum of -ln sigmoid(distance of the other tail - distance of the tail): [n, d] each."""
        if self.matrices is not None:
            every = torch.stack([heads, tails, others], 1)  # [n, 3, d]
            heads, tails, others = moved_by(every, relations, self.matrices).unbind(1)
        moved = heads + self.relations[relations]
        near, far = (moved - tails).square().sum(1), (moved - others).square().sum(1)
        return -F.logsigmoid(far - near).sum()
