"""BST: Behavior Sequence Transformer for E-commerce Recommendation in Alibaba, Chen et al., 2019.

A transformer reads the candidate and the history, each at its place, and the tower all it makes:

    [z_c, z_1, ..., z_l] = transformer of [c, e_1, ..., e_l] + positions        0 where no item is
"""

import torch
from torch import Tensor, nn

from shoal.models.clicks.history.base import HistoryModel, HistoryReader
from shoal.models.nn.transformer import Transformer


class Sequence(HistoryReader):
    """[b, d], [b, l, d], bool [b, l] -> [b, (l + 1) * d]."""

    def __init__(self, dim: int, length: int, layers: int, heads: int, dropout: float):
        super().__init__()
        self.width = (length + 1) * dim
        self.positions = nn.Parameter(torch.randn(length + 1, dim) * 0.02)
        self.transformer = Transformer(
            layers, heads, dim, 4 * dim, dropout, activation="relu", init_std=0.1, causal=False
        )

    def forward(self, candidate: Tensor, vectors: Tensor, there: Tensor) -> Tensor:
        every = torch.cat([candidate.unsqueeze(1), vectors], 1) + self.positions
        real = torch.cat([there.new_ones(there.shape[0], 1), there], 1)
        return (self.transformer(every, ~real) * real.unsqueeze(2)).flatten(1)


class BST(HistoryModel):
    """Places are counted from the first of the last `length` items."""

    class Options(HistoryModel.Options):
        n_layers: int = 1
        n_heads: int = 2

    def reader(self, dim: int, length: int) -> HistoryReader:
        options = self.options
        return Sequence(dim, length, options.n_layers, options.n_heads, options.dropout)
