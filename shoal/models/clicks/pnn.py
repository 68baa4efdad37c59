"""PNN: Product-based Neural Networks for User Response Prediction, Qu et al., ICDM 2016.

A perceptron reads the vectors and the products of their pairs:

    inner   <v_i, v_j> for i > j        outer   (sum of v_i) (sum of v_i)^T
    logit = tower of [v_1, v_2, ..., products]
"""

from dataclasses import field
from typing import Literal

import torch
from torch import Tensor

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Vectors
from shoal.models.nn.interactions import Dots
from shoal.models.nn.mlp import Tower


class PNN(Vectors):
    """Inner products, the outer product of the sum, or both."""

    class Options(Vectors.Options):
        # product of every two features' vectors: one number, a matrix, or both
        product: Literal["inner", "outer", "both"] = "inner"
        layers: list[int] = field(default_factory=lambda: [400, 400, 400])
        dropout: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim)
        self.dots = Dots(self.num_vectors)
        width = self.num_vectors * options.dim
        width += self.dots.lower.numel() if options.product != "outer" else 0
        width += options.dim**2 if options.product != "inner" else 0
        self.deep = Tower([width, *options.layers], options.dropout)

    def logits(self, batch: Batch) -> Tensor:
        vectors = self.vectors(batch)
        read = [vectors.flatten(1)]
        if self.options.product != "outer":
            read.append(self.dots(vectors))
        if self.options.product != "inner":
            total = vectors.sum(1)
            read.append((total.unsqueeze(2) * total.unsqueeze(1)).flatten(1))
        return self.deep(torch.cat(read, 1))
