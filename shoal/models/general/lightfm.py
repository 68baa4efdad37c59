"""LightFM: Metadata Embeddings for User and Item Cold-start Recommendations, Kula, CBRecSys 2015.

A user's vector is the sum of the vectors of the user's features, an item's of the item's; the id is
one of the features, so that an item without interactions is still described by its other features:

    u = sum of v_f over the features f of the user      score = <u, i> + b_i
    i, b_i = sums of v_f and b_f over the features of the item
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from shoal.models.base import Batch, Embeddings, Facts, Init, Output, Retrieval, Table
from shoal.models.nn.losses import bpr_loss, pointwise_loss, warp_loss


class LightFM(Retrieval):
    """Matrix factorisation over features. A number is a feature whose vector it multiplies."""

    reads_features = True

    class Options(Retrieval.Options):
        embedding_size: int = 64
        # BPR: an item above a negative; WARP: above the first negative that comes too near;
        # logistic: each by itself, or labels
        loss: Literal["BPR", "WARP", "logistic"] = "BPR"

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.same_width(options.embedding_size)
        for side in ("user", "item"):
            if not facts.of_side(side):
                raise ValueError(
                    f"LightFM makes a {side} of the {side}'s features, and data.features has none "
                    f"of side {side}; add {side}_id: {{kind: id, side: {side}}}"
                )
        tables: dict[str, Table] = {}
        biases: dict[str, Table] = {}
        for feature in facts.sparse:
            vectors = Table(feature.table, options.embedding_size, feature.rows, padding=0)
            if feature.side != "context":
                tables[feature.name] = vectors
            if feature.side == "item":
                tables["neg_" + feature.name] = vectors
                name, zeros = feature.table + "_bias", Init("constant", 0.0)
                bias = Table(name, 1, feature.rows, zeros, padding=0)
                biases |= {feature.name: bias, "neg_" + feature.name: bias}
        self.embed = Embeddings(tables)
        self.bias = Embeddings(biases)
        widths = {f.name: f.width for f in facts.numeric if f.side != "context"}
        columns = options.embedding_size + 1
        self.numbers = nn.ParameterDict(
            {name: torch.randn(width, columns) * 0.01 for name, width in widths.items()}
        )

    def forward(self, batch: Batch) -> Output:
        users = self._vectors(batch, "user")  # [b, d + 1], the last column is the bias
        items = self._vectors(batch, "item")
        if "neg_item" not in batch.ids:
            if batch.labels is None or self.options.loss != "logistic":
                raise ValueError(
                    "LightFM learns from negatives and has none; set train.negatives.num to 1, or "
                    "model.loss=logistic for labelled interactions"
                )
            logits = (users * items).sum(1)
            loss = binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")
            return Output(loss, batch.size)
        width = batch.tensor("neg_item").shape[1]
        negatives = self._vectors(batch, "item", "neg_")
        negatives = negatives.view(batch.size, width, items.shape[1])  # [b, k, d + 1]
        if self.options.loss == "BPR":
            return Output(bpr_loss(users, items, negatives), batch.size * width)
        if self.options.loss == "WARP":
            loss = warp_loss(users, items, negatives, self.facts.num_items - 1)
            return Output(loss, batch.size)
        good = (users * items).sum(1, keepdim=True)
        logits = torch.cat([good, (users.unsqueeze(1) * negatives).sum(2)], 1)
        return Output(pointwise_loss(logits), logits.numel())

    def encode_query(self, batch: Batch) -> Tensor:
        users = batch.tensor(self.facts.user_field)
        return self._vectors(self.facts.side("user", users), "user")

    def encode_item(self, ids: Tensor) -> Tensor:
        vectors = self._vectors(self.facts.side("item", ids), "item")
        return vectors.view(*ids.shape, self.options.embedding_size + 1)

    def _vectors(self, batch: Batch, side: str, prefix: str = "") -> Tensor:
        """Sums over the features of one side: [samples, d + 1]; a user's bias is 1, to add b_i."""
        size = self.options.embedding_size
        vectors: list[Tensor] = []
        biases: list[Tensor] = []
        for feature in self.facts.of_side(side):
            field = prefix + feature.name
            if not feature.is_sparse:
                numbers = batch.dense[field].reshape(-1, feature.width) @ self.numbers[feature.name]
                vectors.append(numbers[:, :size])
                biases.append(numbers[:, size:])
                continue
            pooling: Any = feature.pooling
            vectors.append(self.embed.pooled(field, batch, pooling).reshape(-1, size))
            if side == "item":
                biases.append(self.bias.pooled(field, batch, pooling).reshape(-1, 1))
        vector = torch.stack(vectors).sum(0)
        if side == "user":
            return torch.cat([vector, torch.ones_like(vector[:, :1])], 1)
        return torch.cat([vector, torch.stack(biases).sum(0)], 1)
