"""Perceptrons side by side, and gates that weigh them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.models.nn.mlp import MLP, begin_normal


class Experts(nn.Module):
    """Perceptrons of the same input: [b, width] -> [b, experts, sizes[-1]]."""

    def __init__(self, number: int, sizes: list[int], dropout: float = 0.0):
        super().__init__()
        self.each = nn.ModuleList(MLP(sizes, dropout) for _ in range(number))
        begin_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([expert(x) for expert in self.each], 1)


class Gate(nn.Module):
    """The mean of experts [b, n, d], weighed by softmax(W x): -> [b, d]."""

    def __init__(self, width: int, number: int):
        super().__init__()
        self.linear = nn.Linear(width, number, bias=False)
        begin_normal(self)

    def forward(self, x: Tensor, experts: Tensor) -> Tensor:
        return torch.bmm(self.linear(x).softmax(1).unsqueeze(1), experts).squeeze(1)
