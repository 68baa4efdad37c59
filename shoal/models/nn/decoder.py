"""A decoder of a transformer: it writes texts, several for each memory that it reads.

In training all places of a text are computed at once. To write, one place is computed after the
other, for all texts in one call: keys and values of the places before are kept, and those of the
memory are made once. All texts of a memory look at it as queries of one attention, so that it is
never repeated.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.nn.dropout import Dropout
from shoal.models.nn.mlp import begin_normal
from shoal.models.nn.transformer import HIDDEN, Attention, Residual, feed_forward, split_heads


@dataclass
class MemoryKeys:
    """What the decoder keeps of a memory: keys and values of each block, and what is hidden."""

    keys: list[tuple[Tensor, Tensor]]  # [b, heads, m, d / heads] each
    hidden: Tensor  # [b, 1, 1, m], added to scores


class Decoder(nn.Module):
    """Pre-norm blocks of causal attention, attention to the memory and a feed-forward layer."""

    def __init__(self, layers: int, heads: int, width: int, inner: int, dropout: float):
        super().__init__()
        self.blocks = nn.ModuleList(Block(heads, width, inner, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        begin_normal(self, 0.02)

    @property
    def _blocks(self) -> "list[Block]":
        return cast("list[Block]", list(self.blocks))

    def remember(self, memory: Tensor, pads: Tensor) -> MemoryKeys:
        """What texts look at: memory [b, m, d], pads bool [b, m]: places to ignore."""
        keys = [block.cross.keys(memory) for block in self._blocks]
        return MemoryKeys(keys, pads[:, None, None, :].to(memory.dtype) * HIDDEN)

    def forward(self, x: Tensor, memory: MemoryKeys) -> Tensor:
        """States of w texts of t places for each of b memories: [b, w, t, d] -> the same."""
        for block, keys in zip(self._blocks, memory.keys):
            x = block(x, keys, memory.hidden)
        return self.norm(x)

    def next(self, x: Tensor, memory: MemoryKeys, before: Tensor) -> tuple[Tensor, Tensor]:
        """States of the next place of w texts, and what the place after it is to be given.

        x [b, w, d], before [b, w, blocks, 2, t, d] -> [b, w, d], [b, w, blocks, 2, t + 1, d]
        """
        kept = []
        for number, (block, keys) in enumerate(zip(self._blocks, memory.keys)):
            x, now = block.next(x, keys, memory.hidden, before[:, :, number])
            kept.append(now)
        return self.norm(x), torch.stack(kept, 2)


class Block(nn.Module):
    """One of them: [b, w, t, d] -> the same."""

    def __init__(self, heads: int, width: int, inner: int, dropout: float):
        super().__init__()
        self.own = Residual(Attention(heads, width, 0.0, causal=True), width, dropout, 1e-6)
        self.cross = CrossAttention(heads, width, dropout)
        self.feed = Residual(feed_forward(width, inner), width, dropout, 1e-6)

    def forward(self, x: Tensor, keys: tuple[Tensor, Tensor], hidden: Tensor) -> Tensor:
        size, texts, length, width = x.shape
        x = self.own(x.reshape(size * texts, length, width))
        x = self.cross(x.view(size, texts * length, width), keys, hidden)
        x = self.feed(x.view(size * texts, length, width))
        return x.view(size, texts, length, width)

    def next(
        self, x: Tensor, keys: tuple[Tensor, Tensor], hidden: Tensor, before: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One place more of each text in this block, as `Decoder.next`: before [b, w, 2, t, d]."""
        attention = self.own.layer
        assert isinstance(attention, Attention)
        query, *now = attention.query_key_value(self.own.norm(x)).unsqueeze(2).chunk(3, -1)
        kept = torch.cat([before, torch.stack(now, 2)], 3)  # [b, w, 2, t + 1, d]
        # A few places for each of thousands of texts: sums of products are quicker than attention.
        shape = attention.heads, x.shape[2] // attention.heads
        key, value = kept.unflatten(-1, shape).unbind(2)  # [b, w, t + 1, heads, d / heads]
        scores = (query.unflatten(-1, shape) * key).sum(-1, keepdim=True) * shape[1] ** -0.5
        mixed = (scores.softmax(2) * value).sum(2).flatten(2)
        x = self.cross(x + attention.out(mixed), keys, hidden)
        return self.feed(x), kept


class CrossAttention(nn.Module):
    """x + dropout(attention of norm(x) to a memory's keys): [b, n, d] -> the same."""

    def __init__(self, heads: int, width: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.dropout = Dropout(dropout)

    def keys(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a memory [b, m, d]: [b, heads, m, d / heads] each."""
        key, value = self.key_value(memory).chunk(2, -1)
        return split_heads(key, self.heads), split_heads(value, self.heads)

    def forward(self, x: Tensor, keys: tuple[Tensor, Tensor], hidden: Tensor) -> Tensor:
        query = split_heads(self.query(self.norm(x)), self.heads)
        mixed = F.scaled_dot_product_attention(query, *keys, hidden)
        return x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
