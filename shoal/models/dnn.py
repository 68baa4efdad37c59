"""DNN: the perceptron of Deep Neural Networks for YouTube Recommendations, Covington et al., 2016.

logit = tower of [v_1, v_2, ..., dense]
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Init, Table
from shoal.models.base import ClickModel, Facts
from shoal.models.nn.mlp import Tower


class DNN(ClickModel):
    """A perceptron over the vectors of the slots and the dense values."""

    @dataclass
    class Options(ClickModel.Options):
        dim: int = 9
        layers: list[int] = field(default_factory=lambda: [400, 400, 400])
        dropout: float = 0.0
        initial_range: float = 1e-4  # near 0: an id that was never seen says next to nothing

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        init = Init("uniform", options.initial_range)
        self.embed = Embeddings({"slots": Table("slots", options.dim, facts.rows, init)})
        self.width = facts.num_slots * options.dim + facts.num_dense
        self.deep = Tower([self.width, *options.layers], options.dropout)

    def features(self, batch: Batch) -> Tensor:
        """All that is known of a sample, side by side: [b, num_slots * dim + num_dense]."""
        return torch.cat([self.slots(self.embed, batch).flatten(1), self.dense(batch)], 1)

    def logits(self, batch: Batch) -> Tensor:
        return self.deep(self.features(batch))
