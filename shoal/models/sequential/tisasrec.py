"""TiSASRec: Time Interval Aware Self-Attention for Sequential Recommendation, Li et al., WSDM 2020.

Attention that also knows how far apart in time two items are, in units of the user's shortest
interval, at most `time_span` of them:

    e_ij = <q_i, k_j + r_ij + p_j>        z_i = sum of softmax(e_i)_j (v_j + r'_ij + p'_j),  j <= i
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.models.base import Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.transformer import ACTIVATIONS, HIDDEN, Activation
from shoal.models.sequential.base import NextItem, lengths


class TiSASRec(NextItem):
    """Self-attention with time intervals, trained at every position."""

    reads_times = True

    @dataclass
    class Options(NextItem.Options):
        n_layers: int = 2
        n_heads: int = 2
        hidden_size: int = 64
        inner_size: int = 256
        hidden_dropout_prob: float = 0.5
        attn_dropout_prob: float = 0.5
        hidden_act: Activation = "relu"
        layer_norm_eps: float = 1e-12
        time_span: int = 256  # different intervals of time; longer ones count as the longest

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.hidden_size
        self.make_items(width)
        # of keys and of values: by position, by interval
        self.positions = nn.Parameter(torch.randn(2, facts.max_len, width) * 0.02)
        self.intervals = nn.Parameter(torch.randn(2, options.time_span + 1, width) * 0.02)
        self.dropout = Dropout(options.hidden_dropout_prob)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.n_layers))
        self.norm = nn.LayerNorm(width, eps=options.layer_norm_eps)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        length = len(self.position_ids(history))
        apart = intervals(batch.tensor("history_time")[:, :length], history)
        apart = apart.clamp(max=self.options.time_span)
        x = self.dropout(self.embed.field("history", batch))
        for block in self.blocks:
            x = block(x, self.positions[:, :length], self.intervals, apart)
        return self.norm(x)


class Block(nn.Module):
    """One layer of attention and one feed-forward layer: [b, l, d] -> the same."""

    def __init__(self, options: TiSASRec.Options):
        super().__init__()
        width, self.heads = options.hidden_size, options.n_heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.feed = nn.Sequential(
            nn.Linear(width, options.inner_size),
            ACTIVATIONS[options.hidden_act](),
            nn.Linear(options.inner_size, width),
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(width, eps=options.layer_norm_eps) for _ in range(2)
        )
        self.attention_dropout = Dropout(options.attn_dropout_prob)
        self.dropouts = nn.ModuleList(Dropout(options.hidden_dropout_prob) for _ in range(2))

    def forward(self, x: Tensor, positions: Tensor, intervals: Tensor, apart: Tensor) -> Tensor:
        length, heads = x.shape[1], self.heads
        query, key, value = self.query_key_value(self.norms[0](x)).chunk(3, -1)
        key, value = self._heads(key + positions[0]), self._heads(value + positions[1])
        query = self._heads(query) * (x.shape[-1] // heads) ** -0.5  # [b, h, l, d / h]
        # <q_i, r_ij> by interval: q against all of them, then picked. Nothing is [b, l, l, d].
        by_interval = self._heads(intervals)  # [2, h, spans, d / h]
        index = apart.unsqueeze(1).expand(-1, heads, -1, -1)
        scores = query @ key.transpose(-1, -2)
        scores = scores + (query @ by_interval[0].transpose(-1, -2)).gather(3, index)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = self.attention_dropout(scores.masked_fill(later, HIDDEN).softmax(-1))
        spread = weights.new_zeros(*weights.shape[:3], by_interval.shape[2])
        mixed = weights @ value + spread.scatter_add(3, index, weights) @ by_interval[1]
        x = x + self.dropouts[0](mixed.transpose(1, 2).flatten(2))
        return x + self.dropouts[1](self.feed(self.norms[1](x)))

    def _heads(self, x: Tensor) -> Tensor:
        """[b, l, d] -> [b, heads, l, d / heads]"""
        return x.view(*x.shape[:2], self.heads, x.shape[2] // self.heads).transpose(1, 2)


def intervals(times: Tensor, history: Tensor) -> Tensor:
    """|t_i - t_j| in units of each history's shortest interval above 0: [b, l] -> [b, l, l]."""
    apart = (times.unsqueeze(2) - times.unsqueeze(1)).abs()
    steps = (times[:, 1:] - times[:, :-1]).abs()
    number = torch.arange(1, times.shape[1], device=times.device)
    real = (number < lengths(history).unsqueeze(1)) & (steps > 0)
    shortest = F.pad(steps.masked_fill(~real, 1 << 62), (0, 1), value=1 << 62).amin(1)
    return apart // shortest.view(-1, 1, 1)
