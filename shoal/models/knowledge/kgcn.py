"""KGCN: Knowledge Graph Convolutional Networks for Recommender Systems, Wang et al., WWW 2019.

An item is what its neighbours in the graph are, as far as the user minds their relations:

    n(v) = sum over neighbours of softmax(<u, r>) e        e_v <- act(W (e_v + n(v)) + b)
    score = <u, e_item after n_iter rounds>

Every node has `neighbor_sample_size` neighbours, drawn once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Init, Table
from shoal.models.base import SCORE_BLOCK, Facts, Output
from shoal.models.knowledge.base import KnowledgeModel, pointwise
from shoal.models.nn.edges import Edges
from shoal.models.nn.mlp import begin_by_width


class KGCN(KnowledgeModel):
    """Convolution over drawn neighbours, weighed by the user; edges are gone both ways."""

    near: Tensor  # [nodes, neighbours]
    by: Tensor  # their relations; 0: the node has none and is its own neighbour

    @dataclass
    class Options(KnowledgeModel.Options):
        embedding_size: int = 64
        n_iter: int = 1  # hops from an item
        neighbor_sample_size: int = 4  # neighbours of an entity that are looked at
        # how an entity and its neighbours become one vector
        aggregator: Literal["sum", "concat", "neighbor"] = "sum"

        def __post_init__(self) -> None:
            if self.aggregator not in ("sum", "concat", "neighbor"):
                raise ValueError(
                    f"model.aggregator is {self.aggregator!r}; say sum, concat or neighbor"
                )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size, xavier = options.embedding_size, Init("xavier")
        users = Table("user", size, facts.num_users, xavier)
        nodes = Table("node", size, self.num_nodes, xavier)
        self.embed = Embeddings({facts.user_field: users, "node": nodes})
        both = torch.cat([self.heads, self.tails]), torch.cat([self.tails, self.heads])
        edges = Edges(both[0], self.relations.repeat(2), both[1], self.num_nodes)
        itself = torch.arange(self.num_nodes).unsqueeze(1)
        drawn = edges.random(itself.repeat(1, options.neighbor_sample_size))
        near = torch.where(drawn >= 0, edges.tails[drawn], itself)
        self.register_buffer("near", near)
        self.register_buffer("by", torch.where(drawn >= 0, edges.relations[drawn], 0))
        self.by_relation = nn.Parameter(torch.randn(self.num_relations, size) * size**-0.5)
        width = size * (2 if options.aggregator == "concat" else 1)
        self.rounds = nn.ModuleList(nn.Linear(width, size) for _ in range(options.n_iter))
        begin_by_width(self.rounds)

    def forward(self, batch: Batch) -> Output:
        _, items, negatives = self.samples_of(batch)
        scores = self.score(batch, torch.cat([items.unsqueeze(1), negatives], 1))
        return pointwise(scores[:, 0], scores[:, 1:])

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        users = self.embed.field(self.facts.user_field, batch)
        if items.dim() == 1 and len(self.rounds) == 1 and not torch.compiler.is_exporting():
            return self._one_round(users, items)
        every = items.expand(users.shape[0], -1) if items.dim() == 1 else items
        return (self.seen_by(users, every) * users.unsqueeze(1)).sum(-1)

    def _one_round(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores of users [b, d] for items [n]: [b, n].

        The layer is linear in an item and in its neighbours, so each is taken through it once and
        only their sum is made for every pair. Users are columns: what is theirs lies together.
        """
        nodes, layer = self.item_node[items], self.rounds[0]
        assert isinstance(layer, nn.Linear)
        rows = self.embed.rows("node", torch.cat([nodes.unsqueeze(1), self.near[nodes]], 1))
        of_own = of_near = layer.weight
        if self.options.aggregator == "concat":
            of_own, of_near = layer.weight.chunk(2, 1)
        own = rows[:, 0] @ of_own.T * float(self.options.aggregator != "neighbor") + layer.bias
        near = (rows[:, 1:] @ of_near.T).mT.contiguous()  # [n, d, neighbours]
        columns = users.T.contiguous()
        minds, by = self.by_relation @ columns, self.by[nodes]  # [relations, b], [n, neighbours]
        block, parts = max(1, SCORE_BLOCK // max(1, users.numel())), []
        for some in torch.arange(len(items), device=items.device).split(block):
            weights = minds[by[some]].softmax(1)  # [block, neighbours, b]
            seen = (near[some] @ weights).add_(own[some].unsqueeze(2)).tanh_()  # [block, d, b]
            parts.append(seen.mul_(columns).sum(1))
        return torch.cat(parts).T.contiguous()

    def seen_by(self, users: Tensor, items: Tensor) -> Tensor:
        """What items [b, n] are for users [b, d]: [b, n, d]."""
        layers, size = [self.item_node[items].unsqueeze(2)], users.shape[1]
        weights = []  # of the neighbours of a layer's nodes: [b, n, nodes, neighbours]
        minds = (users @ self.by_relation.T)[:, None, None, :]  # [b, 1, 1, relations]
        for _ in self.rounds:
            nodes = layers[-1]
            by = self.by[nodes]
            scores = minds.expand(*nodes.shape, -1).gather(3, by)
            weights.append(scores.softmax(3))
            layers.append(self.near[nodes].flatten(2))
        rows = self.embed.rows("node", torch.cat(layers, 2))  # one lookup for all
        vectors = list(rows.split([layer.shape[2] for layer in layers], 2))
        for number, layer in enumerate(self.rounds):
            last = number == len(self.rounds) - 1
            vectors = [
                self._round(layer, vectors[k], vectors[k + 1], weights[k], last)
                for k in range(len(vectors) - 1)
            ]
        return vectors[0].view(*items.shape, size)

    def _round(
        self, layer: nn.Module, own: Tensor, near: Tensor, weights: Tensor, last: bool
    ) -> Tensor:
        """Nodes [b, n, m, d] with their neighbours [b, n, m * k, d]: [b, n, m, d]."""
        near = (near.view(*weights.shape, own.shape[3]) * weights.unsqueeze(4)).sum(3)
        joined = {"sum": own + near, "neighbor": near}.get(self.options.aggregator)
        made = layer(torch.cat([own, near], 3) if joined is None else joined)
        return made.tanh() if last else made.relu()
