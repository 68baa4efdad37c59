"""Word2Vec: Item2Vec: Neural Item Embedding for Collaborative Filtering, Barkan and Koenigstein,
2016, after Distributed Representations of Words and Phrases, Mikolov et al., NIPS 2013.

Items that are taken near each other have like vectors: every item of the last `window` ones
predicts the next by separate vectors.

    loss = -sum over the window of ln sigmoid(<c, target>) + sum of ln sigmoid(-<c, negative>)
    score(item) = <mean of the window, item>
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Embeddings, Facts, Init, Output, Retrieval, Table
from shoal.models.sequential.base import lengths


class Word2Vec(Retrieval):
    """Skip-gram with negatives, of items in a history."""

    kind = "sequential"
    samples = "prefixes"

    class Options(Retrieval.Options):
        embedding_size: int = 64
        window: int = 10  # number of preceding items that predict the next one

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives.num": 5}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        read = Table("item", width, facts.num_items, Init("normal", width**-0.5), padding=0)
        output = Table("output", width, facts.num_items, Init("constant", 0.0), padding=0)
        self.embed = Embeddings(history=read, target=output, neg_item=output)

    def _window(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Rows of the history, and 1 where an item is in the window: [b, l, d], [b, l]."""
        history = batch.tensor("history")
        count = lengths(history).unsqueeze(1)
        place = torch.arange(history.shape[1], device=history.device)
        inside = (place < count) & (place >= count - self.options.window)
        return self.embed.field("history", batch), inside.float()

    def forward(self, batch: Batch) -> Output:
        self.negatives(batch, 5)
        rows, inside = self._window(batch)
        target_rows = self.embed(batch, ["target", "neg_item"])
        # [b, 1 + k, d]: a negative turned round is to be near
        targets = torch.cat([target_rows["target"].unsqueeze(1), -target_rows["neg_item"]], 1)
        terms = F.logsigmoid(rows @ targets.transpose(1, 2))  # [b, l, 1 + k]
        return Output(-(terms * inside.unsqueeze(2)).sum(), inside.sum())

    def encode_query(self, batch: Batch) -> Tensor:
        rows, inside = self._window(batch)
        return (rows * inside.unsqueeze(2)).sum(1) / inside.sum(1, keepdim=True).clamp(min=1)

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.embed.rows("target", ids)
