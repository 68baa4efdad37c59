"""How much each item of a history matters for a candidate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.models.nn.mlp import begin_normal

NEVER = -1e9  # not -inf: an empty history has no place to look at, and must not become NaN


class Bilinear(nn.Module):
    """Shares softmax of <h, W c> over what is there: [b, c], [b, l, d], bool [b, l] -> [b, l]."""

    def __init__(self, candidate: int, dim: int):
        super().__init__()
        self.linear = nn.Linear(candidate, dim, bias=False)
        begin_normal(self)

    def forward(self, candidate: Tensor, vectors: Tensor, there: Tensor) -> Tensor:
        scores = torch.bmm(vectors, self.linear(candidate).unsqueeze(2)).squeeze(2)
        return scores.masked_fill(~there, NEVER).softmax(1) * there
