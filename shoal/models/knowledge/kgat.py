"""KGAT: Knowledge Graph Attention Network for Recommendation, Wang et al., KDD 2019.

Users, items and entities are one graph; a node hears its neighbours as much as they fit it:

    a(h, r, t) = softmax over h's edges of <W_r e_t, tanh(W_r e_h + e_r)>
    n_h = sum of a e_t        e_h <- leaky(W_1 (e_h + n_h)) + leaky(W_2 (e_h * n_h))
    score = <u, i> of all layers side by side        loss = BPR + kg_weight * TransR
"""

from dataclasses import field
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.knowledge.base import SpreadModel, TransR
from shoal.models.nn.dropout import shared_dropout
from shoal.models.nn.edges import Edges
from shoal.models.nn.mlp import begin_normal


class KGAT(SpreadModel):
    """Attention is computed in every step and, as in the paper, learned by TransR alone."""

    head_nodes: Tensor  # [n]: the heads of every relation, relation after relation
    head_counts: Tensor  # [relations]: how many each has
    head_place: Tensor  # [edges]: where among them an edge's head is
    tail_nodes: Tensor  # [n]: the tails of every relation, relation after relation
    tail_counts: Tensor  # [relations]: how many each has
    tail_place: Tensor  # [edges]: where among them an edge's tail is

    class Options(SpreadModel.Options):
        embedding_size: int = 64
        kg_embedding_size: int = 64  # width of a relation's space
        layers: list[int] = field(default_factory=lambda: [64])
        # how a node and its neighbours become one: both forms above, the first, or side by side
        aggregator_type: Literal["bi", "gcn", "graphsage"] = "bi"
        mess_dropout: float = 0.1  # dropout of the messages between entities
        reg_weight: float = 1e-5
        kg_weight: float = 1.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        number, users = self.num_relations, facts.num_users
        taken = self.taken_nodes()
        # relations: those of the graph, the same backwards, taking (0), being taken (number)
        heads = [taken[0], taken[1] + users, self.heads + users, self.tails + users]
        tails = [heads[1], heads[0], heads[3], heads[2]]
        by = torch.zeros_like(taken[0])
        relations = [by, by + number, self.relations, self.relations + number]
        nodes = users + self.num_nodes
        self.edges = Edges(torch.cat(heads), torch.cat(relations), torch.cat(tails), nodes)
        # a relation's matrix is taken once for every node that has it, not once for every edge
        for name, ends in (("head", self.edges.heads), ("tail", self.edges.tails)):
            pairs, place = torch.unique(self.edges.relations * nodes + ends, return_inverse=True)
            self.register_buffer(f"{name}_nodes", pairs % nodes, persistent=False)
            self.register_buffer(f"{name}_place", place, persistent=False)
            counts = torch.bincount(pairs // nodes, minlength=2 * number)
            self.register_buffer(f"{name}_counts", counts, persistent=False)
        self.translation = TransR(2 * number, options.embedding_size, options.kg_embedding_size)
        sizes = [options.embedding_size, *options.layers]
        kind = options.aggregator_type
        parts = 2 if kind == "graphsage" else 1
        self.add = nn.ModuleList(nn.Linear(parts * a, b) for a, b in pairwise(sizes))
        self.times = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes) if kind == "bi")
        begin_normal(self.add)
        begin_normal(self.times)

    def forward(self, batch: Batch) -> Output:
        output = self.pair_loss(batch)
        of_graph = self.options.kg_weight * self.graph_loss(batch.size)
        return Output(output.loss + of_graph, output.count)

    def spread(self, users: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        x, edges = torch.cat([users, nodes]), self.edges
        shares = self._attention(x)
        layers = [x]
        for number, add in enumerate(self.add):
            near = edges.mixed(x, shares)
            if self.options.aggregator_type == "graphsage":
                x = F.leaky_relu(add(torch.cat([x, near], 1)))
            elif self.options.aggregator_type == "gcn":
                x = F.leaky_relu(add(x + near))
            else:
                x = F.leaky_relu(add(x + near)) + F.leaky_relu(self.times[number](x * near))
            if self.training:
                x = shared_dropout(x, self.options.mess_dropout)
            layers.append(F.normalize(x, dim=1))
        every = torch.cat(layers, 1)
        return every[: len(users)], every[len(users) :]

    @torch.no_grad()
    def _attention(self, x: Tensor) -> Tensor:
        """How much every edge counts among those of its head: [edges]."""
        relations = self.translation.relations.repeat_interleave(self.head_counts, 0)
        heads = (self._moved(x, self.head_nodes, self.head_counts) + relations).tanh_()
        tails = self._moved(x, self.tail_nodes, self.tail_counts)
        scores = F.embedding(self.head_place, heads) * F.embedding(self.tail_place, tails)
        return self.edges.shares(scores.sum(1))

    def _moved(self, x: Tensor, nodes: Tensor, counts: Tensor) -> Tensor:
        """Nodes [n], so many of each relation, in their relation's space: [n, kg d]."""
        assert self.translation.matrices is not None
        parts = zip(nodes.split(counts.tolist()), self.translation.matrices)
        return torch.cat([F.embedding(some, x) @ matrix for some, matrix in parts])
