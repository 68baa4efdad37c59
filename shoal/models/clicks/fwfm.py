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
from shoal.models.nn.interactions import Dots


class FwFM(FM):
    """FM whose pairs are weighed; weights begin at 1, where it is FM."""

    @dataclass
    class Options(FM.Options):
        pass

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.dots = Dots(self.num_vectors)
        self.pair_weights = nn.Parameter(torch.ones(self.dots.lower.numel()))

    def logits(self, batch: Batch) -> Tensor:
        return LR.logits(self, batch) + self.dots(self.vectors(batch)) @ self.pair_weights
