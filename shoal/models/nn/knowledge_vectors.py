"""KnowledgeVectors: vectors of items and relations that a knowledge graph alone has taught.

TransE, Bordes et al., NIPS 2013: a relation moves heads to tails.

    loss = sum of max(0, 1 + |h + r - t|^2 - |h + r - t'|^2), t' any entity
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.knowledge import Knowledge
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table

BATCH = 2048  # triples


class KnowledgeVectors(nn.Module):
    """What a graph says of items, ids of any shape -> [..., dim], and `relations`.

    The vectors are learned before the model is, on every process alike; zeros where an item is no
    entity. Unless they are frozen a table of what the model changes in them is added.
    """

    items: Tensor  # [num_items, dim]
    relations: Tensor  # [num_relations, dim]

    def __init__(self, model: str, graph: Knowledge | None, dim: int, epochs: int, *, frozen: bool):
        super().__init__()
        if graph is None or not len(graph.heads):
            raise ValueError(
                f"{model} reads a knowledge graph and the data has none; load it "
                "with data.load={inter: ['*'], kg: ['*'], link: ['*']} from NAME.kg and NAME.link"
            )
        entities, relations = learn_translations(graph, dim, epochs)
        entities[0] = 0.0
        self.register_buffer("items", entities[graph.item_entity])
        self.register_buffer("relations", relations)
        self.changes: Embeddings | None = None
        if not frozen:
            rows = len(graph.item_entity)
            table = Table("knowledge", dim, rows, Init("constant", 0.0), padding=0)
            self.changes = Embeddings(item=table)

    def forward(self, ids: Tensor) -> Tensor:
        vectors = F.embedding(ids, self.items)
        return vectors if self.changes is None else vectors + self.changes.rows("item", ids)

    def whole(self) -> Tensor:
        """The vectors of all items: [num_items, dim]."""
        return self.items if self.changes is None else self.items + self.changes.whole("item")


def learn_translations(graph: Knowledge, dim: int, epochs: int) -> tuple[Tensor, Tensor]:
    """TransE's vectors of entities and relations; the same for the same graph, on any process.

    Entities have length 1 after every epoch, as in the paper.
    """
    with torch.inference_mode(False), torch.enable_grad():  # whoever opens a run may forbid both
        return _learn_translations(graph, dim, epochs)


def _learn_translations(graph: Knowledge, dim: int, epochs: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    sizes = graph.num_entities, graph.num_relations
    entities, relations = (
        F.normalize(torch.randn(size, dim, generator=random), dim=1).requires_grad_()
        for size in sizes
    )
    optimizer = torch.optim.Adam([entities, relations], lr=0.01)
    triples = torch.stack([graph.heads, graph.relations, graph.tails])
    for _ in range(epochs):
        order = torch.randperm(triples.shape[1], generator=random)
        for places in order.split(BATCH):
            heads, by, tails = triples[:, places]
            others = torch.randint(1, sizes[0], tails.shape, generator=random)
            moved = F.embedding(heads, entities) + F.embedding(by, relations)
            near = (moved - F.embedding(tails, entities)).square().sum(1)
            far = (moved - F.embedding(others, entities)).square().sum(1)
            optimizer.zero_grad()
            torch.relu(1.0 + near - far).mean().backward()
            optimizer.step()
        entities.data = F.normalize(entities.data, dim=1)
    return entities.detach(), relations.detach()
