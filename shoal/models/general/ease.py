"""EASE: Embarrassingly Shallow Autoencoders for Sparse Data, Steck, WWW 2019.

The weights that best tell a user's items from the others, in closed form:

    P = (X^T X + reg I)^-1        W = I - P / diag(P), with zeros on the diagonal
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.models.general.item_weights import ItemWeights


class EASE(ItemWeights):
    """A linear autoencoder without a hidden layer."""

    @dataclass
    class Options(ItemWeights.Options):
        reg_weight: float = 250.0

        def __post_init__(self) -> None:
            if not self.reg_weight > 0.0:
                raise ValueError(f"reg_weight is {self.reg_weight}; it must be above 0")

    def solve(self, together: Tensor) -> Tensor:
        together = together + self.options.reg_weight * torch.eye(len(together)).double()
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(together))
        weights = -inverse / inverse.diagonal()
        return weights.fill_diagonal_(0.0)
