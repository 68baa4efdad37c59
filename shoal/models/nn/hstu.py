"""A layer of HSTU; its formula stands in shoal/models/sequential/hstu.py."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.kernels.common.sequences import BUCKETS, Sequences, time_buckets
from shoal.kernels.hstu import (
    hstu_attention,
    normed,
    normed_and_gated,
    plain_hstu_attention,
    sequences_of,
    takes_hstu,
)
from shoal.models.nn.dropout import Dropout, draw_key
from shoal.models.nn.transformer import split_heads


def places_of(
    x: Tensor, history: Tensor, times: Tensor | None, widest: int
) -> tuple[Tensor | None, Sequences | None]:
    """What layers over x [b, l, width], with heads no wider than `widest`, read of history [b, l],
    where 0 is a pad, and times [b, l + 1]: buckets, or sequences where there are kernels.
    """
    if takes_hstu(x, widest):
        return None, sequences_of(history, times)
    return None if times is None else time_buckets(times), None


def pack(x: Tensor, sequences: Sequences | None) -> Tensor:
    """Without the pads that `sequences` leaves out: [b, l, width] -> [tokens, width], or x."""
    if sequences is None or sequences.tokens is None:
        return x
    return x.flatten(0, 1).index_select(0, sequences.tokens)


def spread(x: Tensor, sequences: Sequences | None, size: int) -> Tensor:
    """With zeros at pads again, of so many sequences: the reverse of `pack`."""
    if sequences is None or sequences.tokens is None:
        return x
    whole = x.new_zeros(size * sequences.longest, x.shape[-1])
    return whole.index_copy(0, sequences.tokens, x).view(size, sequences.longest, -1)


class HSTULayer(nn.Module):
    """One block: [b, l, width] -> [b, l, width], with the options of HSTU.

    Attention reads what `places_of` makes: buckets of times, [b, l, l] or None, or `sequences`, and
    then x is what `pack` leaves.
    """

    def __init__(self, options: Any, max_len: int):
        super().__init__()
        width, heads = options.hidden_size, options.n_heads
        attention = heads * (options.attention_size or width // heads)
        linear = heads * (options.linear_size or width // heads)
        self.heads, self.max_len, self.eps = heads, max_len, options.layer_norm_eps
        self.widest = max(attention, linear) // heads  # of a head
        self.sizes = [linear, linear, attention, attention]
        self.project = nn.Parameter(torch.randn(width, sum(self.sizes)) * 0.02)
        self.position_bias = self.time_bias = None
        if options.use_positions:  # by how far an item is back
            self.position_bias = nn.Parameter(torch.randn(max_len) * 0.02)
        if options.use_times:
            self.time_bias = nn.Parameter(torch.randn(BUCKETS + 1) * 0.02)
        self.dropout = Dropout(options.linear_dropout_prob)
        self.out = nn.Linear(linear, width)
        nn.init.xavier_uniform_(self.out.weight)

    def forward(
        self, x: Tensor, buckets: Tensor | None, sequences: Sequences | None = None
    ) -> Tensor:
        if sequences is not None:
            made = self._by_kernels(x.reshape(-1, x.shape[-1]), sequences)
            return x + self.out(made).view_as(x)
        size, length, width = x.shape
        projected = F.silu(F.layer_norm(x, [width], eps=self.eps) @ self.project)
        gate, value, query, key = projected.split(self.sizes, -1)
        value, query, key = (split_heads(part, self.heads) for part in (value, query, key))
        biases = self.position_bias, self.time_bias
        mixed = plain_hstu_attention(query, key, value, *biases, buckets, self.max_len)
        mixed = mixed.transpose(1, 2).reshape(size, length, self.sizes[1])
        mixed = F.layer_norm(mixed, [mixed.shape[-1]], eps=self.eps)
        return x + self.out(self.dropout(mixed * gate))

    def _by_kernels(self, x: Tensor, sequences: Sequences) -> Tensor:
        """What the last product reads: [tokens, width] -> [tokens, linear]."""
        projected = F.silu(normed(x, self.eps) @ self.project)
        gate, *parts = projected.split(self.sizes, -1)
        value, query, key = (part.view(len(x), self.heads, -1) for part in parts)
        biases = self.position_bias, self.time_bias
        mixed = hstu_attention(query, key, value, sequences, *biases, self.max_len)
        rows, mask = sequences.tokens, (None, 0)
        if self.training:
            each = sequences.longest if rows is not None else sequences.longest * self.sizes[1]
            mask = draw_key(x.device, each)
        return normed_and_gated(mixed.flatten(1), gate, self.eps, self.dropout.p, *mask, rows)
