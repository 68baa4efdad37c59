"""DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, Guo et al., IJCAI 2017.

A factorization machine and a perceptron that share their vectors:

    logit = FM + tower of [v_1, v_2, ...]
"""

from dataclasses import field

from torch import Tensor

from shoal.models.base import Batch, Facts
from shoal.models.clicks.fm import FM
from shoal.models.clicks.lr import LR
from shoal.models.nn.interactions import sum_of_dots
from shoal.models.nn.mlp import Tower


class DeepFM(FM):
    """First order, second order, and a perceptron over the vectors of all features."""

    class Options(FM.Options):
        layers: list[int] = field(default_factory=lambda: [512, 256, 128, 32])
        dropout: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = (facts.num_slots + facts.num_dense) * options.dim
        self.deep = Tower([width, *options.layers], options.dropout)

    def logits(self, batch: Batch) -> Tensor:
        vectors = self.vectors(batch)
        return LR.logits(self, batch) + sum_of_dots(vectors) + self.deep(vectors.flatten(1))
