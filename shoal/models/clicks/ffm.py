"""FFM: Field-aware Factorization Machines for CTR Prediction, Juan et al., RecSys 2016.

A feature has another vector for every field that it meets:

    logit = LR + sum over i < j of <v_i for field j, v_j for field i>
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shoal.data.batch import Batch
from shoal.models.base import Facts
from shoal.models.clicks.lr import LR
from shoal.models.clicks.vectors import Vectors


class FFM(LR, Vectors):
    """A row holds a feature's vectors for all fields: fields * dim wide."""

    @dataclass
    class Options(LR.Options, Vectors.Options):
        dim: int = 4

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim * self.num_vectors)

    def logits(self, batch: Batch) -> Tensor:
        number = self.num_vectors
        each = self.vectors(batch).view(batch.size, number, number, self.options.dim)
        # products of (i for j) with (j for i); both halves are the same, the diagonal is left out
        met = (each * each.transpose(1, 2)).sum(-1)  # [b, n, n]
        pairs = 0.5 * (met.sum((1, 2)) - met.diagonal(dim1=1, dim2=2).sum(1))
        return super().logits(batch) + pairs
