"""How much each item of a history matters for a candidate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.models.nn.mlp import MLP, begin_by_width

NEVER = -1e9  # not -inf: an empty history has no place to look at, and must not become NaN


class ActivationUnit(nn.Module):
    """A perceptron of [h, c, h - c, h * c]: candidate [b, d], vectors [b, l, d] -> [b, l]."""

    def __init__(self, dim: int, layers: list[int]):
        super().__init__()
        sizes = [4 * dim, *layers]
        self.hidden = MLP(sizes)
        self.out = nn.Linear(sizes[-1], 1)
        begin_by_width(self)

    def forward(self, candidate: Tensor, vectors: Tensor) -> Tensor:
        asked = candidate.unsqueeze(1).expand_as(vectors)
        read = torch.cat([vectors, asked, vectors - asked, vectors * asked], 2)
        return self.out(self.hidden(read)).squeeze(2)


class Bilinear(nn.Module):
    """Shares softmax of <h, W c> over what is there: [b, c], [b, l, d], bool [b, l] -> [b, l]."""

    def __init__(self, candidate: int, dim: int):
        super().__init__()
        self.linear = nn.Linear(candidate, dim, bias=False)
        begin_by_width(self)

    def forward(self, candidate: Tensor, vectors: Tensor, there: Tensor) -> Tensor:
        scores = torch.bmm(vectors, self.linear(candidate).unsqueeze(2)).squeeze(2)
        return scores.masked_fill(~there, NEVER).softmax(1) * there
