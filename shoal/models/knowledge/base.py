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

from shoal.models.base import Batch, Embeddings, Facts, Init, Model, Output, Propagated, Table
from shoal.models.nn.dropout import uniform_like
from shoal.models.nn.edges import Edges
from shoal.models.nn.losses import bpr_loss, half_squares


@dataclass(frozen=True)
class Triples:
    """Triples and, for each, a tail drawn at random: int64 [n] each."""

    heads: Tensor
    relations: Tensor
    tails: Tensor
    others: Tensor


class KnowledgeModel(Model):
    """Learns from pairs (item, negative) and from triples (head, relation, tail).

    candidates [b, 1 + k] -> scores [b, 1 + k]    triples, one a sample: heads, tails [b, d]
    """

    heads: Tensor  # [triples]
    relations: Tensor
    tails: Tensor
    item_node: Tensor  # [num_items]
    embed: Embeddings  # has a table of nodes
    translation: TransR  # of those that use `graph_loss`

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
        buffers = {
            "heads": graph.heads,
            "relations": graph.relations,
            "tails": graph.tails,
            "item_node": torch.where(alone, behind, graph.item_entity),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value.long(), persistent=False)  # rebuilt from the data

    def both_ways(self, back: int = 0) -> Edges:
        """The triples as edges from head to tail and back; `back` is added to relations there."""
        heads, tails = torch.cat([self.heads, self.tails]), torch.cat([self.tails, self.heads])
        relations = torch.cat([self.relations, self.relations + back])
        return Edges(heads, relations, tails, self.num_nodes)

    def taken_nodes(self) -> Tensor:
        """Users and the nodes of items they took, each pair once: [2, pairs]."""
        users, items = self.facts.train_users.long(), self.facts.train_items.long()
        return torch.unique(torch.stack([users, self.item_node[items]]), dim=1)

    def make_tables(self, size: int, *, items: bool = False, init: Init | None = None) -> None:
        """Tables of users and nodes, and of items where they have separate vectors."""
        facts, init = self.facts, init or Init("xavier")
        tables = {facts.user_field: Table("user", size, facts.num_users, init)}
        if items:
            tables[facts.item_field] = Table("item", size, facts.num_items, init)
        self.embed = Embeddings(tables, node=Table("node", size, self.num_nodes, init))

    def candidates(self, batch: Batch) -> Tensor:
        """The item of each sample and its negatives: [b, 1 + k]."""
        items = batch.tensor(self.facts.item_field).unsqueeze(1)
        return torch.cat([items, self.negatives(batch)], 1)

    def graph_loss(self, size: int, reg_weight: float = 0.0) -> Tensor:
        """The loss of `translation` for a drawn triple of each sample, summed.

        reg_weight: of half the squared norms of the triples' vectors.
        """
        drawn = self.draw(size)
        ends = [self.embed.rows("node", ids) for ids in (drawn.heads, drawn.tails, drawn.others)]
        loss = self.translation(drawn.relations, *ends)
        if reg_weight:
            relations = self.translation.relations[drawn.relations]
            loss = loss + reg_weight * half_squares(relations, *ends)
        return loss

    def draw(self, size: int) -> Triples:
        """A triple for each sample of the batch, and a tail that belongs to no one."""
        numbers = uniform_like(torch.empty(size, 2, device=self.heads.device))
        total, tails = len(self.heads), self.num_entities - 1
        chosen = (numbers[:, 0] * total).long().clamp(max=total - 1)
        others = 1 + (numbers[:, 1] * tails).long().clamp(max=tails - 1)
        return Triples(self.heads[chosen], self.relations[chosen], self.tails[chosen], others)


def moved_by(vectors: Tensor, by: Tensor, matrices: Tensor) -> Tensor:
    """Vectors [n, ..., d] times the matrix [relations, d, e] of each relation [n]: [n, ..., e]."""
    if torch.compiler.is_exporting():  # a graph has no sizes that depend on values
        return torch.einsum("n...d,nde->n...e", vectors, matrices[by])
    order = by.argsort(stable=True)  # a product for each relation, not one for each vector
    sizes = torch.bincount(by, minlength=len(matrices)).tolist()
    parts = zip(vectors.index_select(0, order).split(sizes), matrices)
    return torch.cat([part @ matrix for part, matrix in parts]).index_select(0, order.argsort())


class TransR(nn.Module):
    """A relation moves heads to tails, in its own space: |M_r h + r - M_r t|^2 is small.

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


class SpreadModel(KnowledgeModel, Propagated):
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
        user_rows = F.embedding(batch.tensor(self.facts.user_field), users)
        right, wrong = (F.embedding(self.item_node[ids], nodes) for ids in (items, negatives))
        size = half_squares(user_rows, right, wrong)
        loss = bpr_loss(user_rows, right, wrong) + self.options.reg_weight * size
        return Output(loss, negatives.numel())

    def encode_query(self, batch: Batch) -> Tensor:
        return F.embedding(batch.tensor(self.facts.user_field), self.propagated()[0])

    def encode_item(self, ids: Tensor) -> Tensor:
        return F.embedding(self.item_node[ids], self.propagated()[1])
