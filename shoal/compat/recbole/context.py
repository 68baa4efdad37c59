"""The base of click models that were written for RecBole (its ContextRecommender)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shoal.compat.recbole.interaction import InputType, Interaction
from shoal.compat.recbole.models import RecBoleModel, total
from shoal.models.base import Batch, ClickModel, Facts, Init, Output


class BatchOfFeatures(Interaction):
    """A batch of a click model: its label by name, and the batch for the embedding functions."""

    def __init__(self, batch: Batch, label: str):
        super().__init__({} if batch.labels is None else {label: batch.labels})
        self.batch = batch

    def __len__(self) -> int:
        return self.batch.size


class ContextRecommender(ClickModel):
    """The base of click models: features embedded alike, one after the other [b, fields, d].

    A class writes `calculate_loss(interaction)`, and `predict(interaction)`, a probability.
    """

    cuda_graph_safe = False
    input_type: ClassVar[Any] = InputType.POINTWISE

    class Options(ClickModel.Options):
        """Options that are also read as a config."""

        embedding_size: int = 10

        __getitem__ = RecBoleModel.Options.__getitem__
        __contains__ = RecBoleModel.Options.__contains__

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.LABEL = facts.labels[0].name if facts.labels else "label"
        self.embedding_size = options.embedding_size
        self.num_feature_field = facts.num_slots + facts.num_dense
        self.same_width(self.embedding_size)
        self.embed = self.embeddings(self.embedding_size, Init("xavier_normal"))
        self.dense_vectors = nn.Parameter(torch.empty(facts.num_dense, self.embedding_size))
        nn.init.normal_(self.dense_vectors, 0.0, 0.01)
        self.linear = self.embeddings(1, Init("constant", 0.0), suffix="_linear")
        self.dense_weights = nn.Parameter(torch.zeros(facts.num_dense))
        self.bias = nn.Parameter(torch.zeros(1))
        self.register_buffer("_anchor", torch.empty(0), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        anchor: Any = self._anchor
        return anchor.device

    def calculate_loss(self, interaction: Any) -> Any:
        """The mean loss over samples."""
        raise NotImplementedError  # every class writes its own

    def predict(self, interaction: Any) -> Tensor:
        """The probability of a click: [b]."""
        raise NotImplementedError  # every class writes its own

    def embed_input_fields(self, interaction: BatchOfFeatures) -> tuple[Tensor, Tensor | None]:
        """Vectors of features with ids [b, slots, d], and of numbers [b, dense, d] or None."""
        vectors = self.slots(self.embed, interaction.batch)
        if not self.facts.num_dense:
            return vectors, None
        return vectors, self.dense(interaction.batch).unsqueeze(2) * self.dense_vectors

    def concat_embed_input_fields(self, interaction: BatchOfFeatures) -> Tensor:
        """Vectors of all features: [b, num_feature_field, d]."""
        parts = [part for part in self.embed_input_fields(interaction) if part is not None]
        return torch.cat(parts, 1)

    def first_order_linear(self, interaction: BatchOfFeatures) -> Tensor:
        """The weights of features, summed: [b, 1]."""
        weights = self.slots(self.linear, interaction.batch).sum(1)
        dense = self.dense(interaction.batch)
        return weights + (dense @ self.dense_weights).unsqueeze(1) + self.bias

    def logits(self, batch: Batch) -> Tensor:
        probability = self.predict(BatchOfFeatures(batch, self.LABEL)).reshape(batch.size)
        return torch.logit(probability.float(), eps=1e-7)

    def forward(self, batch: Batch) -> Output:
        if not batch.size:  # the mean of nothing is no number
            return Output(self.logits(batch).sum() * 0.0, 0)
        loss = total(self.calculate_loss(BatchOfFeatures(batch, self.LABEL)))
        return Output(loss * batch.size, batch.size)
