"""CKE: Collaborative Knowledge Base Embedding for Recommender Systems, Zhang et al., KDD 2016.

An item is its own vector and the one that its entity has in the knowledge graph:

    score = <u, i + e_i>        loss = BPR + kg_weight * TransR of drawn triples

The structural part of the paper; texts and pictures are left out.
"""

from dataclasses import field

from torch import Tensor

from shoal.models.base import Batch, Facts, Output, Retrieval
from shoal.models.knowledge.base import KnowledgeModel, TransR
from shoal.models.nn.losses import bpr_loss, half_squares


class CKE(KnowledgeModel, Retrieval):
    """Factorisation with TransR beside it."""

    class Options(KnowledgeModel.Options):
        embedding_size: int = 64
        kg_embedding_size: int = 64  # width of a relation's space
        kg_weight: float = 1.0
        # weights of half the squared norms of users and items, and of the vectors of triples
        reg_weights: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size = options.embedding_size
        self.make_tables(size, items=True)
        self.translation = TransR(self.num_relations, size, options.kg_embedding_size)

    def forward(self, batch: Batch) -> Output:
        items, negatives = batch.tensor(self.facts.item_field), self.negatives(batch)
        of_pairs, of_triples = self.options.reg_weights
        query = self.encode_query(batch)
        right, wrong = self.encode_item(items), self.encode_item(negatives)
        loss = bpr_loss(query, right, wrong) + of_pairs * half_squares(query, right, wrong)
        of_graph = self.options.kg_weight * self.graph_loss(batch.size, of_triples)
        return Output(loss + of_graph, negatives.numel())

    def encode_query(self, batch: Batch) -> Tensor:
        return self.embed.field(self.facts.user_field, batch)

    def encode_item(self, ids: Tensor) -> Tensor:
        own = self.embed.rows(self.facts.item_field, ids)
        return own + self.embed.rows("node", self.item_node[ids])
