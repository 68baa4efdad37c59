"""DNN: the perceptron of Deep Neural Networks for YouTube Recommendations, Covington et al., 2016.

logit = tower of [v_1, v_2, ..., dense]
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.table import Init
from shoal.models.base import ClickModel, Facts
from shoal.models.nn.mlp import Tower


class DNN(ClickModel):
    """A perceptron over the vectors of the features and the numbers; a logit for each label."""

    several_labels = True

    @dataclass
    class Options(ClickModel.Options):
        dim: int = 9
        layers: list[int] = field(default_factory=lambda: [400, 400, 400])
        dropout: float = 0.0
        initial_range: float = 1e-4  # near 0: an id that was never seen says next to nothing

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        init = Init("uniform", options.initial_range)
        self.embed = self.embeddings(options.dim, init)
        width = self.width(options.dim) + facts.num_dense
        self.outputs = len(facts.labels) if self.several_labels and facts.labels else 1
        self.deep = Tower([width, *options.layers], options.dropout, self.outputs)

    def features(self, batch: Batch) -> Tensor:
        """All that is known of a sample, side by side: [b, width + num_dense]."""
        return torch.cat([self.flat(self.embed, batch), self.dense(batch)], 1)

    def logits(self, batch: Batch) -> Tensor:
        return self.deep(self.features(batch))
