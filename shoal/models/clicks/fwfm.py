"""FwFM: Field-weighted Factorization Machines for Click-Through Rate Prediction.

Pan et al., WWW 2018. Every pair of fields has its own weight:

    logit = LR + sum over i < j of r_ij <v_i, v_j>
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.fm import FM
from shoal.models.clicks.lr import LR
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.interactions import Dots


class FwFM(FM):
    """FM whose pairs are weighed; weights begin at 1, where it is FM."""

    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "fields": (None, "every feature is a field")
    }

    class Options(FM.Options):
        dropout: float = 0.0  # dropout of the products of pairs

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.dots = Dots(self.num_vectors)
        self.dropout = Dropout(options.dropout)
        self.pair_weights = nn.Parameter(torch.ones(len(self.dots.lower)))

    def logits(self, batch: Batch) -> Tensor:
        products = self.dropout(self.dots(self.vectors(batch)))
        return LR.logits(self, batch) + products @ self.pair_weights
