"""A layer of HSTU; its formula stands in shoal/models/sequential/hstu.py."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.kernels.common.sequences import BUCKETS, Sequences, time_buckets
from shoal.kernels.hstu import hstu_attention, plain_hstu_attention, sequences_of, takes_hstu
from shoal.models.nn.dropout import Dropout
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


class HSTULayer(nn.Module):
    """One block: [b, l, width] -> [b, l, width], with the options of HSTU.

    Attention reads what `places_of` makes: buckets of times, [b, l, l] or None, or `sequences`.
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
        size, length, width = x.shape
        projected = F.silu(F.layer_norm(x, [width], eps=self.eps) @ self.project)
        gate, value, query, key = projected.split(self.sizes, -1)
        biases = self.position_bias, self.time_bias
        if sequences is not None:
            value, query, key = (
                part.view(size * length, self.heads, -1) for part in (value, query, key)
            )
            mixed = hstu_attention(query, key, value, sequences, *biases, self.max_len)
        else:
            value, query, key = (split_heads(part, self.heads) for part in (value, query, key))
            mixed = plain_hstu_attention(query, key, value, *biases, buckets, self.max_len)
            mixed = mixed.transpose(1, 2)
        mixed = mixed.reshape(size, length, self.sizes[1])
        mixed = F.layer_norm(mixed, [mixed.shape[-1]], eps=self.eps)
        return x + self.out(self.dropout(mixed * gate))
