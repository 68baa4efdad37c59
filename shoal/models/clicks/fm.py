"""FM: Factorization Machines, Rendle, ICDM 2010.

Logistic regression, and the dot products of all pairs of features. A feature is the id of a slot
with its vector v_i, or a dense value x with x * v of its column:

    logit = LR + sum over i < j of <v_i, v_j>
"""

from torch import Tensor

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Vectors
from shoal.models.clicks.lr import LR
from shoal.models.nn.interactions import sum_of_dots


class FM(LR, Vectors):
    """First and second order of all features: vectors [b, n, dim] -> logits [b]."""

    def __init__(self, options: Vectors.Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim)

    def logits(self, batch: Batch) -> Tensor:
        return super().logits(batch) + sum_of_dots(self.vectors(batch))
