"""How the features of a sample meet each other: sums of dot products, single ones, crosses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.models.nn.mlp import begin_by_width


def sum_of_dots(vectors: Tensor) -> Tensor:
    """The dot products of all pairs i < j, summed: [b, n, d] -> [b].

    sum over pairs of <v_i, v_j>  =  (|sum of v_i|^2 - sum of |v_i|^2) / 2, so n steps, not n^2.
    """
    return 0.5 * (vectors.sum(1).square().sum(1) - vectors.square().sum((1, 2)))


class Dots(nn.Module):
    """The dot products of all pairs i > j, each by itself: [b, n, d] -> [b, n * (n - 1) / 2]."""

    lower: Tensor

    def __init__(self, n: int):
        super().__init__()
        rows, columns = torch.tril_indices(n, n, -1).unbind()
        self.register_buffer("lower", rows * n + columns, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        every = torch.bmm(vectors, vectors.transpose(1, 2))  # [b, n, n]
        return every.flatten(1).index_select(1, self.lower)


class Cross(nn.Module):
    """Cross layers x <- x0 * (W x + b) + x, each one degree more: [b, width] -> [b, width].

    With `low_rank` r, W = U V of [width, r] and [r, width].
    """

    def __init__(self, width: int, layers: int, low_rank: int | None = None):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(layers):
            if low_rank is None:
                self.layers.append(nn.Linear(width, width))
            else:
                down, up = nn.Linear(width, low_rank, bias=False), nn.Linear(low_rank, width)
                self.layers.append(nn.Sequential(down, up))
        begin_by_width(self)

    def forward(self, first: Tensor) -> Tensor:
        x = first
        for layer in self.layers:
            x = torch.addcmul(x, first, layer(x))
        return x
