"""DIN: Deep Interest Network for Click-Through Rate Prediction, Zhou et al., KDD 2018.

The items of a history count as much as they matter for the candidate c:

    interest = sum over items h of a(h, c) h        a = perceptron of [h, c, h - c, h * c]

Weights are not made to sum to 1: how many items matter is seen too.
"""

from dataclasses import field

import torch
from torch import Tensor, nn

from shoal.models.clicks.history.base import HistoryModel, HistoryReader
from shoal.models.nn.mlp import MLP, begin_normal


class ActivationUnit(nn.Module):
    """A perceptron of [h, c, h - c, h * c]: candidate [b, d], vectors [b, l, d] -> [b, l]."""

    def __init__(self, dim: int, layers: list[int]):
        super().__init__()
        sizes = [4 * dim, *layers]
        self.hidden = MLP(sizes)
        self.out = nn.Linear(sizes[-1], 1)
        begin_normal(self)

    def forward(self, candidate: Tensor, vectors: Tensor) -> Tensor:
        candidates = candidate.unsqueeze(1).expand_as(vectors)
        read = torch.cat([vectors, candidates, vectors - candidates, vectors * candidates], 2)
        return self.out(self.hidden(read)).squeeze(2)


class Interest(HistoryReader):
    """[b, d], [b, l, d], bool [b, l] -> [b, d]."""

    def __init__(self, dim: int, layers: list[int]):
        super().__init__()
        self.width = dim
        self.unit = ActivationUnit(dim, layers)

    def forward(self, candidate: Tensor, vectors: Tensor, there: Tensor) -> Tensor:
        weights = self.unit(candidate, vectors) * there
        return torch.bmm(weights.unsqueeze(1), vectors).squeeze(1)


class DIN(HistoryModel):
    """Relu in place of the paper's Dice, whose statistics would be those of a batch."""

    class Options(HistoryModel.Options):
        # widths inside the attention
        attention_layers: list[int] = field(default_factory=lambda: [80, 40])

    def reader(self, dim: int, length: int) -> HistoryReader:
        return Interest(dim, self.options.attention_layers)
