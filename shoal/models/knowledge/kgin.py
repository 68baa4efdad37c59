"""KGIN: Learning Intents behind Interactions with Knowledge Graph, Wang et al., WWW 2021.

Intents are mixtures of relations; a user hears the items taken through the intents that matter:

    e_p = sum of softmax(w_p)_r e_r
    e_h <- mean over (r, t) of e_r * e_t        u <- (sum of softmax(<u, e_p>) e_p) * mean of items
    score = <u, i> of the sum of all layers        loss = BPR + sim_weight * likeness of intents
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.models.base import Facts, Output
from shoal.models.knowledge.spread import Spread
from shoal.models.nn.edges import Edges


class KGIN(Spread):
    """Intents are kept apart by the squares of their cosines; edges are gone both ways."""

    by: Tensor  # [messages]: the relation of each thing that edges say
    about: Tensor  # and the node

    @dataclass
    class Options(Spread.Options):
        embedding_size: int = 64
        context_hops: int = 2  # hops over the graph
        n_factors: int = 4  # intents
        reg_weight: float = 1e-5
        sim_weight: float = 1e-3  # of the penalty that keeps intents different

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        both = torch.cat([self.heads, self.tails]), torch.cat([self.tails, self.heads])
        by = torch.cat([self.relations, self.relations + self.num_relations])
        # what an edge says depends on its relation and tail alone, and many edges have both alike
        said, place = torch.unique(by * self.num_nodes + both[1], return_inverse=True)
        self.known = Edges(both[0], by, place, self.num_nodes, len(said))
        for name, value in (("by", said // self.num_nodes), ("about", said % self.num_nodes)):
            self.register_buffer(name, value, persistent=False)  # the data makes it anew
        users, nodes = facts.train_users.long(), self.item_node[facts.train_items.long()]
        pairs = torch.unique(torch.stack([users, nodes]), dim=1)
        none = torch.zeros_like(pairs[0])
        self.taken = Edges(pairs[0], none, pairs[1], facts.num_users, self.num_nodes)
        size, relations = options.embedding_size, 2 * self.num_relations
        self.by_relation = nn.Parameter(1.0 + torch.randn(relations, size) * 0.1)
        self.mixtures = nn.Parameter(torch.randn(options.n_factors, relations))

    def forward(self, batch: Batch) -> Output:
        output = self.pair_loss(batch)
        intents = F.normalize(self._intents(), dim=1)
        alike = (intents @ intents.T).triu(1).square().sum()
        # a term of every sample: the mean over any number of them is the same
        return Output(output.loss + self.options.sim_weight * alike * output.count, output.count)

    def _intents(self) -> Tensor:
        return self.mixtures.softmax(1) @ self.by_relation

    def propagate(self, users: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        intents = self._intents()
        minded = (users @ intents.T).softmax(1) @ intents  # [num_users, d]
        total_users, total_nodes = users, nodes
        for _ in range(self.options.context_hops):
            heard = self._mean(self.taken, nodes)
            messages = F.embedding(self.by, self.by_relation) * F.embedding(self.about, nodes)
            nodes = F.normalize(self._mean(self.known, messages), dim=1)
            users = F.normalize(minded * heard, dim=1)
            total_users, total_nodes = total_users + users, total_nodes + nodes
        return total_users, total_nodes

    def _mean(self, edges: Edges, messages: Tensor) -> Tensor:
        degrees = (edges.starts[1:] - edges.starts[:-1]).clamp(min=1)
        return edges.mixed(messages) / degrees.unsqueeze(1)
