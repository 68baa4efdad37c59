"""FwFM: Field-weighted Factorization Machines for Click-Through Rate Prediction.

Pan et al., WWW 2018. Every pair of fields has a weight of its own:

    logit = LR + sum over i < j of r_ij <v_i, v_j>
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.models.base import Facts
from shoal.models.clicks.fm import FM
from shoal.models.clicks.lr import LR


class FwFM(FM):
    """FM whose pairs are weighed; weights begin at 1, where it is FM."""

    where: Tensor

    @dataclass
    class Options(FM.Options):
        pass

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        number = self.num_vectors
        self.pair_weights = nn.Parameter(torch.ones(number * (number - 1) // 2))
        # Of the matrix of all pairs, the weight of each: those not below the diagonal have none.
        where = torch.full((number, number), len(self.pair_weights))
        rows, columns = torch.tril_indices(number, number, -1)
        where[rows, columns] = torch.arange(len(self.pair_weights))
        self.register_buffer("where", where.flatten(), persistent=False)

    def logits(self, batch: Batch) -> Tensor:
        vectors = self.vectors(batch).transpose(0, 1)  # [n, b, dim]
        weights = torch.cat([self.pair_weights, self.pair_weights.new_zeros(1)])
        matrix = weights.index_select(0, self.where).view(len(vectors), len(vectors))
        met = (matrix @ vectors.flatten(1)).view(vectors.shape)  # what each one meets, weighed
        return LR.logits(self, batch) + (met * vectors).sum(0).sum(1)
