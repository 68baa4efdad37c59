"""CFKG: Learning Heterogeneous Knowledge Base Embeddings, Ai et al., Algorithms 2018.

Users are entities too, and taking an item is one more relation p:

    score = -|u + p - i|^2        loss = BPR of scores + TransE of drawn triples
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Init, Output
from shoal.models.knowledge.base import KnowledgeModel, TransR


class CFKG(KnowledgeModel):
    """One space for users, items and what is known of them."""

    class Options(KnowledgeModel.Options):
        embedding_size: int = 64
        kg_weight: float = 1.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size = options.embedding_size
        self.make_tables(size, init=Init("normal", 0.1))
        self.taking = nn.Parameter(torch.zeros(size))
        self.translation = TransR(self.num_relations, size, size, matrices=False)

    def forward(self, batch: Batch) -> Output:
        scores = self.score(batch, self.candidates(batch))  # [b, 1 + k]
        margins = scores[:, :1] - scores[:, 1:]
        loss = -nn.functional.logsigmoid(margins).sum()
        of_graph = self.options.kg_weight * self.graph_loss(batch.size)
        return Output(loss + of_graph, margins.numel())

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        moved = self.embed.field(self.facts.user_field, batch) + self.taking
        vectors = self.embed.rows("node", self.item_node[items])
        if items.dim() == 1:
            products = moved @ vectors.T
        else:
            products = torch.einsum("bd,bnd->bn", moved, vectors)
        # |a - b|^2 = |a|^2 + |b|^2 - 2 <a, b>
        return 2.0 * products - vectors.square().sum(-1) - moved.square().sum(1, keepdim=True)
