"""TiSASRec: Time Interval Aware Self-Attention for Sequential Recommendation, Li et al., WSDM 2020.

Attention that also knows the time between two items, in units of the user's shortest
interval, at most `time_span` of them:

    e_ij = <q_i, k_j + r_ij + p_j>        z_i = sum of softmax(e_i)_j (v_j + r'_ij + p'_j),  j <= i
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.transformer import HIDDEN, Activation, feed_forward, split_heads
from shoal.models.sequential.base import AttentionOptions, NextItem, lengths, num_places


class TiSASRec(NextItem):
    """Self-attention with time intervals, trained at every position."""

    reads_times = True

    class Options(AttentionOptions, NextItem.Options):
        hidden_size: int = 64
        hidden_act: Activation = "relu"
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
        length = num_places(history, self.facts)
        spans = intervals(batch.tensor("history_time")[:, :length], history)
        spans = spans.clamp(max=self.options.time_span)
        x = self.dropout(self.embed.field("history", batch))
        for block in self.blocks:
            x = block(x, self.positions[:, :length], self.intervals, spans)
        return self.norm(x)


class Block(nn.Module):
    """One layer of attention and one feed-forward layer: [b, l, d] -> the same."""

    def __init__(self, options: TiSASRec.Options):
        super().__init__()
        width, self.heads = options.hidden_size, options.n_heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.feed = feed_forward(width, options.inner_size or 4 * width, options.hidden_act)
        self.norms = nn.ModuleList(nn.LayerNorm(width, options.layer_norm_eps) for _ in range(2))
        self.attention_dropout = Dropout(options.attn_dropout_prob)
        self.dropouts = nn.ModuleList(Dropout(options.hidden_dropout_prob) for _ in range(2))

    def forward(self, x: Tensor, positions: Tensor, intervals: Tensor, spans: Tensor) -> Tensor:
        length, heads = x.shape[1], partial(split_heads, heads=self.heads)
        query, key, value = self.query_key_value(self.norms[0](x)).chunk(3, -1)
        key, value = heads(key + positions[0]), heads(value + positions[1])
        query = heads(query) * (x.shape[-1] // self.heads) ** -0.5  # [b, h, l, d / h]
        # <q_i, r_ij> by interval: q against all of them, then picked. Nothing is [b, l, l, d].
        by_interval = heads(intervals)  # [2, h, spans, d / h]
        index = spans.unsqueeze(1).expand(-1, self.heads, -1, -1)
        scores = query @ key.mT + (query @ by_interval[0].mT).gather(3, index)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = self.attention_dropout(scores.masked_fill(later, HIDDEN).softmax(-1))
        spread = weights.new_zeros(*weights.shape[:3], by_interval.shape[2])
        mixed = weights @ value + spread.scatter_add(3, index, weights) @ by_interval[1]
        x = x + self.dropouts[0](mixed.transpose(1, 2).flatten(2))
        return x + self.dropouts[1](self.feed(self.norms[1](x)))


def intervals(times: Tensor, history: Tensor) -> Tensor:
    """|t_i - t_j| in units of each history's shortest interval above 0: [b, l] -> [b, l, l]."""
    spans = (times.unsqueeze(2) - times.unsqueeze(1)).abs()
    steps = (times[:, 1:] - times[:, :-1]).abs()
    number = torch.arange(1, times.shape[1], device=times.device)
    real = (number < lengths(history).unsqueeze(1)) & (steps > 0)
    shortest = F.pad(steps.masked_fill(~real, 1 << 62), (0, 1), value=1 << 62).amin(1)
    return spans // shortest.view(-1, 1, 1)
