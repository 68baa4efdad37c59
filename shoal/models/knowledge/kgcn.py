"""KGCN: Knowledge Graph Convolutional Networks for Recommender Systems, Wang et al., WWW 2019.

An item is what its neighbours in the graph are, weighed by what their relations are to the user:

    n(v) = sum over neighbours of softmax(<u, r>) e        e_v <- act(W (e_v + n(v)) + b)
    score = <u, e_item after n_iter rounds>

Every node has `neighbor_sample_size` neighbours, drawn once.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output, item_blocks
from shoal.models.knowledge.base import KnowledgeModel
from shoal.models.nn.losses import half_squares, pointwise_loss
from shoal.models.nn.mlp import begin_normal


class KGCN(KnowledgeModel):
    """Convolution over drawn neighbours, weighed by the user; edges are walked both ways."""

    near: Tensor  # [nodes, neighbours]
    by: Tensor  # their relations; 0: the node has none and is its own neighbour

    class Options(KnowledgeModel.Options):
        embedding_size: int = 64
        n_iter: int = 1  # number of hops from an item
        neighbor_sample_size: int = 4  # neighbours of an entity that are looked at
        # how an entity and its neighbours become one vector
        aggregator: Literal["sum", "concat", "neighbor"] = "sum"
        reg_weight: float = 0.0  # weight of half the squared norms of users and items

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size = options.embedding_size
        self.make_tables(size)
        edges = self.both_ways()
        itself = torch.arange(self.num_nodes).unsqueeze(1)
        drawn = edges.random(itself.repeat(1, options.neighbor_sample_size))
        near = torch.where(drawn >= 0, edges.tails[drawn], itself)
        self.register_buffer("near", near)
        self.register_buffer("by", torch.where(drawn >= 0, edges.relations[drawn], 0))
        self.by_relation = nn.Parameter(torch.randn(self.num_relations, size) * size**-0.5)
        width = size * (2 if options.aggregator == "concat" else 1)
        self.rounds = nn.ModuleList(nn.Linear(width, size) for _ in range(options.n_iter))
        begin_normal(self.rounds)

    def forward(self, batch: Batch) -> Output:
        candidates = self.candidates(batch)
        scores = self.score(batch, candidates)
        loss = pointwise_loss(scores)
        if self.options.reg_weight:
            users = self.embed.field(self.facts.user_field, batch)
            items = self.embed.rows("node", self.item_node[candidates])
            loss = loss + self.options.reg_weight * half_squares(users, items)
        return Output(loss, scores.numel())

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        users = self.embed.field(self.facts.user_field, batch)
        nodes = self.around(items)
        rows = self.embed.rows("node", torch.cat(nodes, 2))  # one lookup for all
        parts = []
        for block in item_blocks(items.shape[-1], batch.size * rows.shape[2:].numel()):
            part = [one[:, block] for one in nodes]
            seen = self._seen(users, part, rows[:, block])
            parts.append((seen * users.unsqueeze(1)).sum(-1))
        return torch.cat(parts, 1)

    def around(self, items: Tensor) -> list[Tensor]:
        """Nodes of items [n] or [b, n], then of each round's neighbours: [b or 1, n, k^round]."""
        nodes = [self.item_node[torch.atleast_2d(items)].unsqueeze(2)]
        for _ in self.rounds:
            nodes.append(self.near[nodes[-1]].flatten(2))
        return nodes

    def weights(self, users: Tensor, nodes: list[Tensor]) -> list[Tensor]:
        """What users [b, d] give the neighbours of nodes, by round: [b, n, nodes, neighbours]."""
        valued = (users @ self.by_relation.T)[:, None, None, :]  # [b, 1, 1, relations]
        weights = []
        for layer_nodes in nodes[:-1]:
            by = self.by[layer_nodes].expand(users.shape[0], -1, -1, -1)
            weights.append(valued.expand(*by.shape[:3], -1).gather(3, by).softmax(3))
        return weights

    def _seen(self, users: Tensor, nodes: list[Tensor], rows: Tensor) -> Tensor:
        """What items are for users [b, d]: [b, n, d].

        nodes [b or 1, n, 1], then their neighbours [.., k], theirs [.., k * k], ...; rows of all
        """
        vectors = list(rows.split([one.shape[2] for one in nodes], 2))
        weights = self.weights(users, nodes)
        for number, layer in enumerate(self.rounds):
            last = number == len(self.rounds) - 1
            vectors = [
                self._round(layer, vectors[k], vectors[k + 1], weights[k], last)
                for k in range(len(vectors) - 1)
            ]
        return vectors[0].squeeze(2)

    def _round(
        self, layer: nn.Module, own: Tensor, near: Tensor, weights: Tensor, last: bool
    ) -> Tensor:
        """Nodes [b, n, m, d] with their neighbours [b, n, m * k, d]: [b, n, m, d]."""
        near = near.unflatten(2, weights.shape[2:]) * weights.unsqueeze(4)
        own, near = torch.broadcast_tensors(own, near.sum(3))
        joined = {"sum": own + near, "neighbor": near}.get(self.options.aggregator)
        output = layer(torch.cat([own, near], 3) if joined is None else joined)
        return output.tanh() if last else output.relu()
