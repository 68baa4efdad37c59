"""CFKG: Learning Heterogeneous Knowledge Base Embeddings, Ai et al., Algorithms 2018.

Users are entities too, and taking an item is one more relation p:

    score = -|u + p - i|^2        loss = BPR of scores + TransE of drawn triples
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Init, Table
from shoal.models.base import Facts, Output
from shoal.models.knowledge.base import KnowledgeModel, TransR


class CFKG(KnowledgeModel):
    """One space for users, items and what is known of them."""

    @dataclass
    class Options(KnowledgeModel.Options):
        embedding_size: int = 64
        kg_weight: float = 1.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size, normal = options.embedding_size, Init("normal", 0.1)
        users = Table("user", size, facts.num_users, normal)
        nodes = Table("node", size, self.num_nodes, normal)
        self.embed = Embeddings({facts.user_field: users, "node": nodes})
        self.taking = nn.Parameter(torch.zeros(size))
        self.translation = TransR(self.num_relations, size, size, matrices=False)

    def forward(self, batch: Batch) -> Output:
        _, items, negatives = self.samples_of(batch)
        every = torch.cat([items.unsqueeze(1), negatives], 1)
        scores = self.score(batch, every)  # [b, 1 + k]
        margins = scores[:, :1] - scores[:, 1:]
        loss = -nn.functional.logsigmoid(margins).sum()
        drawn = self.draw(batch.size)
        ends = [self.embed.rows("node", ids) for ids in (drawn.heads, drawn.tails, drawn.others)]
        of_graph = self.translation(drawn.relations, *ends)
        return Output(loss + self.options.kg_weight * of_graph, negatives.numel())

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        moved = self.embed.field(self.facts.user_field, batch) + self.taking
        vectors = self.embed.rows("node", self.item_node[items])
        if items.dim() == 1:
            products = moved @ vectors.T
        else:
            products = torch.einsum("bd,bnd->bn", moved, vectors)
        # |a - b|^2 = |a|^2 + |b|^2 - 2 <a, b>
        return 2.0 * products - vectors.square().sum(-1) - moved.square().sum(1, keepdim=True)
