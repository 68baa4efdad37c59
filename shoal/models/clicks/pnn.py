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
from shoal.models.clicks.base import Penalised, Vectors
from shoal.models.nn.interactions import Dots
from shoal.models.nn.mlp import Tower


class PNN(Penalised, Vectors):
    """Inner products, the outer product of the sum, or both."""

    class Options(Penalised.Options, Vectors.Options):
        use_inner: bool = True  # every two features' product of one number
        use_outer: bool = False  # the matrix of the sum of all features
        # the word of 0.1.0 for both: inner, outer or both; null: use_inner and use_outer say it
        product: Literal["inner", "outer", "both"] | None = None
        layers: list[int] = field(default_factory=lambda: [400, 400, 400])
        dropout: float = 0.0
        reg_weight: float = 0.0  # weight of the norms of the perceptron's weights

        def __post_init__(self) -> None:
            if self.product is not None:
                self.use_inner = self.product != "outer"
                self.use_outer = self.product != "inner"

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim)
        self.dots = Dots(self.num_vectors)
        width = self.num_vectors * options.dim
        width += self.dots.lower.numel() if options.use_inner else 0
        width += options.dim**2 if options.use_outer else 0
        self.deep = Tower([width, *options.layers], options.dropout)

    def penalised(self) -> list[Tensor]:
        return list(self.deep.parameters())

    def logits(self, batch: Batch) -> Tensor:
        vectors = self.vectors(batch)
        read = [vectors.flatten(1)]
        if self.options.use_inner:
            read.append(self.dots(vectors))
        if self.options.use_outer:
            total = vectors.sum(1)
            read.append((total.unsqueeze(2) * total.unsqueeze(1)).flatten(1))
        return self.deep(torch.cat(read, 1))
