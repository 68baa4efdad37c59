"""KSR: Improving Sequential Recommendation with Knowledge-Enhanced Memory Networks, Huang et al.,
SIGIR 2018.

A recurrent network knows the order; a memory with a place for each relation r of a knowledge graph
knows what a user likes of it. With e_i and r the vectors of an entity and a relation (TransE's):

    h = GRU(items)
    write    m_r <- (1 - z) m_r + z (e_i + r),  z = sigmoid(<m_r, e_i + r>), item after item
    read     m = sum of softmax(gamma <W h, r>) m_r
    score(item) = <W1 [h, m], W2 [item, e_item]>
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.knowledge_vectors import KnowledgeVectors
from shoal.models.nn.recurrent import GRU
from shoal.models.sequential.base import NextItem, at_last


class KSR(NextItem):
    """A recurrent network beside a memory by relation.

    Memory is written place after place, so a batch of b holds b * max_len * relations vectors.
    """

    samples = "prefixes"
    rows_are_vectors = False

    class Options(NextItem.Options):
        embedding_size: int = 64
        kg_embedding_size: int = 64  # width of the vectors of entities and relations
        hidden_size: int = 128
        num_layers: int = 1
        dropout_prob: float = 0.1
        gamma: float = 10.0  # how much attention prefers the relation that fits best
        freeze_kg: bool = False  # the vectors of entities stay as the graph has taught them
        kg_epochs: int = 20  # epochs over the graph before the model learns

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, graph_width = options.embedding_size, options.kg_embedding_size
        self.make_items(width)
        self.knowledge = KnowledgeVectors(
            type(self).__name__,
            facts.knowledge,
            graph_width,
            options.kg_epochs,
            frozen=options.freeze_kg,
        )
        self.dropout = Dropout(options.dropout_prob)
        self.gru = GRU(width, options.hidden_size, options.num_layers)
        self.ask = nn.Linear(options.hidden_size, graph_width)
        self.user = nn.Linear(options.hidden_size + graph_width, width)
        self.item = nn.Linear(width + graph_width, width)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        read = self.dropout(self.embed.field("history", batch))
        state = at_last(self.gru(read), history)
        fits = self.options.gamma * self.ask(state) @ self.relations.T  # [b, relations]
        memory = self._written(history)
        recalled = (fits.softmax(1).unsqueeze(2) * memory).sum(1)
        return self.user(torch.cat([state, recalled], 1))

    @property
    def relations(self) -> Tensor:
        """The vectors of relations, without the padding: [relations, d]."""
        return self.knowledge.relations[1:]

    def _written(self, history: Tensor) -> Tensor:
        """What the items of histories [b, l] leave in memory: [b, relations, d]."""
        entities = self.knowledge(history)
        memory = entities.new_zeros(history.shape[0], len(self.relations), entities.shape[2])
        for ids, entity in zip(history.unbind(1), entities.unbind(1)):
            new = entity.unsqueeze(1) + self.relations
            gate = torch.sigmoid((memory * new).sum(2, keepdim=True))
            gate = gate * (ids > 0).view(-1, 1, 1)
            memory = memory + gate * (new - memory)
        return memory

    def encode_item(self, ids: Tensor) -> Tensor:
        """Item vectors: ids of any shape -> that shape + [d]."""
        return self._joined(self.embed.rows("target", ids), self.knowledge(ids))

    def item_vectors(self, rows: Tensor) -> Tensor:
        """Item vectors of rows of all items: [num_items, d] -> the same."""
        return self._joined(rows, self.knowledge.whole())

    def _joined(self, rows: Tensor, entities: Tensor) -> Tensor:
        return self.compared(self.item(torch.cat([rows, entities], -1)))
