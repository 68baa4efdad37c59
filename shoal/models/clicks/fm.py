"""FM: Factorization Machines, Rendle, ICDM 2010.

Logistic regression, and the dot products of all pairs of features. A feature is the id of a slot
with its vector v_i, or a dense value x with x * v of its column:

    logit = LR + sum over i < j of <v_i, v_j>
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.embedding.table import Init
from shoal.models.base import Facts
from shoal.models.clicks.lr import LR
from shoal.models.nn.interactions import sum_of_dots


class FM(LR):
    """First and second order of all features."""

    @dataclass
    class Options(LR.Options):
        dim: int = 9
        initial_range: float = 0.01  # vectors that begin at 0 would never leave it

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.same_width(options.dim)
        init = Init("uniform", options.initial_range)
        self.embed = self.embeddings(options.dim, init)
        vectors = torch.empty(facts.num_dense, options.dim)
        self.dense_vectors = nn.Parameter(
            vectors.uniform_(-options.initial_range, options.initial_range)
        )

    def vectors(self, batch: Batch) -> Tensor:
        """The vectors of all features: [b, num_slots + num_dense, dim]."""
        of_dense = self.dense(batch).unsqueeze(2) * self.dense_vectors
        return torch.cat([self.slots(self.embed, batch), of_dense], 1)

    def logits(self, batch: Batch) -> Tensor:
        return super().logits(batch) + sum_of_dots(self.vectors(batch))
