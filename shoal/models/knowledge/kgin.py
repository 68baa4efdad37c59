"""KGIN: Learning Intents behind Interactions with Knowledge Graph, Wang et al., WWW 2021.

Intents are mixtures of relations; a user hears the items taken through the intents that matter:

    e_p = sum of softmax(w_p)_r e_r
    e_h <- mean over (r, t) of e_r * e_t        u <- (sum of softmax(<u, e_p>) e_p) * mean of items
    score = <u, i> of the sum of all layers        loss = BPR + sim_weight * likeness of intents
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.knowledge.base import SpreadModel
from shoal.models.nn.dropout import shared_dropout
from shoal.models.nn.edges import Edges


class KGIN(SpreadModel):
    """The squares of intents' cosines keep them different; edges are walked both ways."""

    recbole_options: ClassVar[Mapping[str, str]] = {"sim_regularity": "sim_weight"}
    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "ind": ("cosine", "intents are kept different by the squares of their cosines")
    }
    recbole_without_effect: ClassVar[Mapping[str, str]] = {"temperature": "it is of ind: mi alone"}

    class Options(SpreadModel.Options):
        embedding_size: int = 64
        context_hops: int = 2  # hops over the graph
        n_factors: int = 4  # number of intents
        reg_weight: float = 1e-5
        sim_weight: float = 1e-3  # weight of the penalty that keeps intents different
        node_dropout_rate: float = 0.0  # dropout of the edges of the knowledge graph
        mess_dropout_rate: float = 0.0  # dropout of what users and nodes become in a hop

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.graph_edges = self.both_ways(back=self.num_relations)
        users, nodes = self.taken_nodes()
        self.taken = Edges(users, torch.zeros_like(users), nodes, facts.num_users)
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

    def spread(self, users: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        intents = self._intents()
        wanted = (users @ intents.T).softmax(1) @ intents  # [num_users, d]
        total_users, total_nodes = users, nodes
        kept = nodes.new_ones(len(self.graph_edges), 1)
        if self.training:
            kept = shared_dropout(kept, self.options.node_dropout_rate)
        for _ in range(self.options.context_hops):
            heard = self.taken.mixed(nodes) / self.taken.degrees()
            relations = F.embedding(self.graph_edges.relations, self.by_relation)
            messages = relations * F.embedding(self.graph_edges.tails, nodes)
            messages = messages * kept
            nodes = F.normalize(
                self.graph_edges.total(messages) / self.graph_edges.degrees(), dim=1
            )
            users = F.normalize(wanted * heard, dim=1)
            if self.training:
                users = shared_dropout(users, self.options.mess_dropout_rate)
                nodes = shared_dropout(nodes, self.options.mess_dropout_rate)
            total_users, total_nodes = total_users + users, total_nodes + nodes
        return total_users, total_nodes
