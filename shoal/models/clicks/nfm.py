"""NFM: Neural Factorization Machines for Sparse Predictive Analytics, He and Chua, SIGIR 2017.

A perceptron reads the sum of the products of all pairs, element by element:

    p = sum over i < j of v_i * v_j        logit = LR + tower of p
"""

from dataclasses import field

from torch import Tensor

from shoal.models.base import Batch, Facts
from shoal.models.clicks.fm import FM
from shoal.models.clicks.lr import LR
from shoal.models.nn.interactions import sum_of_products
from shoal.models.nn.mlp import Tower


class NFM(FM):
    """FM whose pairs are added up late, after a perceptron. There is no batch norm."""

    class Options(FM.Options):
        dim: int = 16
        # first values lie within +- this; the model reads their products
        initial_range: float = 0.1
        layers: list[int] = field(default_factory=lambda: [400, 400])
        dropout: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.deep = Tower([options.dim, *options.layers], options.dropout)

    def logits(self, batch: Batch) -> Tensor:
        return LR.logits(self, batch) + self.deep(sum_of_products(self.vectors(batch)))
