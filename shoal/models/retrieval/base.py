"""What retrieval models share: two towers, and negatives from the global batch."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Embeddings, Facts, Output, Retrieval
from shoal.models.nn.losses import in_batch_softmax
from shoal.models.options import Positive


class InBatch(Retrieval):
    """A query and an item of each sample; the items of all other samples are its negatives.

    queries [b, d]    items of the global batch [n, d]    logits [b, n], the own item right
    """

    embed: Embeddings
    logq: Tensor
    target: str  # the field of a batch that is asked for

    class Options(Retrieval.Options):
        embedding_size: int = 64
        cosine: bool = True  # vectors are compared by angle
        temperature: Positive = 0.1  # scores are divided by it
        # subtract ln of an item's frequency from its score: popular items are drawn more often
        correct: bool = True

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives": None}

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.target = facts.item_field if self.kind == "general" else "target"
        counts = torch.bincount(facts.train_items, minlength=facts.num_items)
        self.register_buffer("logq", counts.clamp(min=1).float().log(), persistent=False)

    def query(self, batch: Batch) -> Tensor:
        """The query tower: [b, d]."""
        raise NotImplementedError  # every such model writes its own

    def item(self, rows: Tensor) -> Tensor:
        """The item tower: rows [..., d] -> [..., d]."""
        return rows

    def encode_query(self, batch: Batch) -> Tensor:
        return self._compared(self.query(batch)) / self.options.temperature

    def encode_item(self, ids: Tensor) -> Tensor:
        return self._compared(self.item(self.embed.rows(self.target, ids)))

    def _compared(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1) if self.options.cosine else vectors

    def forward(self, batch: Batch) -> Output:
        ids = batch.tensor(self.target)
        items = self._compared(self.item(self.embed.field(self.target, batch)))
        logq = self.logq if self.options.correct else None
        queries = self.encode_query(batch)
        loss = in_batch_softmax(queries, items, ids, self.gather_global, logq)
        return Output(loss, batch.size)
