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
from shoal.models.nn.interactions import sum_of_facing


class FFM(LR, Vectors):
    """A row holds a feature's vectors for all fields: fields * dim wide."""

    @dataclass
    class Options(LR.Options, Vectors.Options):
        dim: int = 4

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim * self.num_vectors)

    def logits(self, batch: Batch) -> Tensor:
        return super().logits(batch) + sum_of_facing(self.vectors(batch))
