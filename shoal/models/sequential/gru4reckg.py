"""GRU4RecKG: GRU4Rec beside a second network that reads what a knowledge graph says of items.

Huang et al., SIGIR 2018, have it as what KSR is compared with; over Hidasi et al., ICLR 2016:

    h = GRU(items), g = GRU'(vectors of their entities)        state = W [h, g]
    score(item) = <state, item>

The vectors of entities are TransE's, learned from the graph before the model is.
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.knowledge_vectors import KnowledgeVectors
from shoal.models.nn.recurrent import GRU
from shoal.models.sequential.base import NextItem


class GRU4RecKG(NextItem):
    """Two recurrent networks, trained at every position."""

    class Options(NextItem.Options):
        embedding_size: int = 64
        hidden_size: int = 128
        num_layers: int = 1
        dropout_prob: float = 0.1
        freeze_kg: bool = True  # the vectors of entities stay as the graph has taught them
        kg_epochs: int = 20  # epochs over the graph before the model learns

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, hidden, layers = options.embedding_size, options.hidden_size, options.num_layers
        self.make_items(width)
        self.knowledge = KnowledgeVectors(
            type(self).__name__,
            facts.knowledge,
            width,
            options.kg_epochs,
            frozen=options.freeze_kg,
        )
        self.item_dropout, self.entity_dropout = (Dropout(options.dropout_prob) for _ in range(2))
        self.item_gru, self.entity_gru = (GRU(width, hidden, layers) for _ in range(2))
        self.dense = nn.Linear(2 * hidden, width)

    def states(self, batch: Batch) -> Tensor:
        items = self.item_dropout(self.embed.field("history", batch))
        entities = self.entity_dropout(self.knowledge(batch.tensor("history")))
        return self.dense(torch.cat([self.item_gru(items), self.entity_gru(entities)], 2))
