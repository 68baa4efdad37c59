"""CFKG: Learning Heterogeneous Knowledge Base Embeddings, Ai et al., Algorithms 2018.

Users are entities too, and taking an item is one more relation p:

    score = -|u + p - i|^2        loss = BPR of scores + TransE of drawn triples

With loss_function inner_product a score is <u + p, i>, of triples <h + r, t>; with transe it is
-|u + p - i|, and a loss max(0, margin - score of the taken one + that of the other).
"""

from typing import Literal

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Init, Output
from shoal.models.knowledge.base import KnowledgeModel, TransR


class CFKG(KnowledgeModel):
    """One space for users, items and what is known of them."""

    class Options(KnowledgeModel.Options):
        embedding_size: int = 64
        kg_weight: float = 1.0
        # how well a tail fits: squared distance, its root (with a margin), or product
        loss_function: Literal["squared", "transe", "inner_product"] = "squared"
        margin: float = 1.0  # with transe: how much better the right one is to fit

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size = options.embedding_size
        self.make_tables(size, init=Init("normal", 0.1))
        self.taking = nn.Parameter(torch.zeros(size))
        self.translation = TransR(self.num_relations, size, size, matrices=False)

    def forward(self, batch: Batch) -> Output:
        scores = self.score(batch, self.candidates(batch))  # [b, 1 + k]
        margins = scores[:, :1] - scores[:, 1:]
        drawn = self.draw(batch.size)
        moved = self.embed.rows("node", drawn.heads) + self.translation.relations[drawn.relations]
        ends = self.embed.rows("node", torch.stack([drawn.tails, drawn.others], 1))
        fits = self._fits(moved, ends)
        of_graph = self.options.kg_weight * self._loss(fits[:, 0] - fits[:, 1])
        return Output(self._loss(margins) + of_graph, margins.numel())

    def _loss(self, margins: Tensor) -> Tensor:
        """The loss of how much better the right one fits, summed."""
        if self.options.loss_function == "transe":
            return nn.functional.relu(self.options.margin - margins).sum()
        return -nn.functional.logsigmoid(margins).sum()

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        moved = self.embed.field(self.facts.user_field, batch) + self.taking
        vectors = self.embed.rows("node", self.item_node[items])
        return self._fits(moved, vectors)

    def _fits(self, moved: Tensor, vectors: Tensor) -> Tensor:
        """How well vectors [n, d] or [b, n, d] fit what is moved [b, d]: [b, n]."""
        if vectors.dim() == 2:
            products = moved @ vectors.T
        else:
            products = torch.einsum("bd,bnd->bn", moved, vectors)
        if self.options.loss_function == "inner_product":
            return products
        # |a - b|^2 = |a|^2 + |b|^2 - 2 <a, b>
        nearness = 2.0 * products - vectors.square().sum(-1) - moved.square().sum(1, keepdim=True)
        if self.options.loss_function == "squared":
            return nearness
        return -(-nearness).clamp(min=1e-12).sqrt()
