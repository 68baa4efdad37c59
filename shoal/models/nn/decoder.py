"""A decoder: it reads what was written so far, and a memory of something else."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.nn.dropout import Dropout
from shoal.models.nn.transformer import HIDDEN, Attention, Residual


class Decoder(nn.Module):
    """Pre-norm blocks of causal attention, attention to the memory and a feed-forward layer."""

    def __init__(self, layers: int, heads: int, width: int, inner_width: int, dropout: float):
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(heads, width, inner_width, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, memory: Tensor, pads: Tensor) -> Tensor:
        """States of w texts of t places for each of b memories.

        x [b, w, t, d], memory [b, m, d], pads bool [b, m]: places that nobody looks at -> as x
        """
        hidden = pads[:, None, None, :].to(memory.dtype) * HIDDEN  # [b, 1, 1, m]
        for block in self.blocks:
            x = block(x, memory, hidden)
        return self.norm(x)


class Block(nn.Module):
    """One of them: [b, w, t, d] -> the same."""

    def __init__(self, heads: int, width: int, inner_width: int, dropout: float):
        super().__init__()
        self.own = Residual(Attention(heads, width, 0.0, causal=True), width, dropout, 1e-6)
        self.cross = Cross(heads, width, dropout)
        self.feed = Residual(feed_forward(width, inner_width), width, dropout, 1e-6)

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        size, texts, length, width = x.shape
        x = self.own(x.reshape(size * texts, length, width))
        x = self.cross(x.view(size, texts * length, width), memory, hidden)
        x = self.feed(x.view(size * texts, length, width))
        return x.view(size, texts, length, width)


class Cross(nn.Module):
    """x + dropout(attention of norm(x) to a memory): [b, n, d], [b, m, d] -> [b, n, d]."""

    def __init__(self, heads: int, width: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        query = self._split(self.query(self.norm(x)))
        key, value = (self._split(part) for part in self.key_value(memory).chunk(2, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, hidden)
        return x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))

    def _split(self, x: Tensor) -> Tensor:
        """[b, n, d] -> [b, heads, n, d / heads]."""
        return x.view(*x.shape[:2], self.heads, x.shape[2] // self.heads).transpose(1, 2)


def feed_forward(width: int, inner: int) -> nn.Sequential:
    """Two layers: [..., width] -> [..., width]."""
    return nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))
