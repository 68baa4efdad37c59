"""HSTU: Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative
Recommendations, Zhai et al., ICML 2024.

Attention without a softmax, whose weights may grow with the number of matches, and a gate:

    U, V, Q, K = silu(W norm(x))
    A_ij  = silu(<Q_i, K_j> + position bias(i - j) + time bias(t_i+1 - t_j)) / n,   j <= i
    x    += W' dropout(norm(A V) * U)

The time bias looks at how long before the item that is asked for (t_i+1) an item was taken: times
are in buckets of log2. When asked, that is the time of the request.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout, recomputed
from shoal.models.nn.transformer import split_heads
from shoal.models.sequential.base import NextItem, num_places

BUCKETS = 128  # of times; log2 of seconds reaches 64 at most


class HSTU(NextItem):
    """Pointwise attention with biases of relative position and time."""

    reads_times = True
    recompute = False  # whether backward computes layers again instead of keeping what they made

    class Options(NextItem.Options):
        n_layers: int = 2
        n_heads: int = 1
        hidden_size: int = 64
        attention_size: int | None = None  # of a head's queries and keys; null: width / heads
        linear_size: int | None = None  # of a head's values; null: width / heads
        hidden_dropout_prob: float = 0.2  # of inputs
        linear_dropout_prob: float = 0.2  # of gated values
        use_times: bool = True  # False: only positions
        layer_norm_eps: float = 1e-6

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.hidden_size
        self.make_items(width)
        self.positions = nn.Parameter(torch.empty(facts.max_len, width))
        nn.init.trunc_normal_(self.positions, std=width**-0.5)
        self.dropout = Dropout(options.hidden_dropout_prob)
        self.layers = nn.ModuleList(
            HSTULayer(options, facts.max_len) for _ in range(options.n_layers)
        )

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        length = num_places(history, self.facts)
        vectors = self.embed.field("history", batch) * math.sqrt(self.options.hidden_size)
        x = self.dropout(vectors + self.positions[:length])
        x = x * (history > 0).unsqueeze(-1)
        buckets = None
        if self.options.use_times:
            buckets = time_buckets(batch.tensor("history_time")[:, : length + 1])
        for layer in self.layers:
            again = self.recompute and self.training
            x = recomputed(layer, x, buckets) if again else layer(x, buckets)
        return x


def time_buckets(times: Tensor) -> Tensor:
    """Buckets of t_i+1 - t_j: times [b, l + 1], of items and of what is asked -> [b, l, l]."""
    between = (times[:, 1:].unsqueeze(2) - times[:, :-1].unsqueeze(1)).abs().clamp(min=1)
    return (between.float().log() / 0.301).long().clamp(max=BUCKETS)


class HSTULayer(nn.Module):
    """One block: [b, l, width], buckets [b, l, l] -> [b, l, width]."""

    def __init__(self, options: HSTU.Options, max_len: int):
        super().__init__()
        width, heads = options.hidden_size, options.n_heads
        attention = heads * (options.attention_size or width // heads)
        linear = heads * (options.linear_size or width // heads)
        self.heads, self.max_len, self.eps = heads, max_len, options.layer_norm_eps
        self.sizes = [linear, linear, attention, attention]
        self.project = nn.Parameter(torch.randn(width, sum(self.sizes)) * 0.02)
        self.position_bias = nn.Parameter(torch.randn(max_len) * 0.02)  # by how far an item is back
        if options.use_times:
            self.time_bias = nn.Parameter(torch.randn(BUCKETS + 1) * 0.02)
        self.dropout = Dropout(options.linear_dropout_prob)
        self.out = nn.Linear(linear, width)
        nn.init.xavier_uniform_(self.out.weight)

    def forward(self, x: Tensor, buckets: Tensor | None) -> Tensor:
        size, length, width = x.shape
        projected = F.silu(F.layer_norm(x, [width], eps=self.eps) @ self.project)
        gate, value, query, key = projected.split(self.sizes, -1)
        parts = value, query, key
        value, query, key = (split_heads(part, self.heads) for part in parts)  # [b, heads, l, ...]
        place = torch.arange(length, device=x.device)
        back = place.unsqueeze(1) - place  # [l, l]; below 0: a later item, which is not seen
        bias = self.position_bias[back.clamp(min=0)]
        if buckets is not None:
            bias = (bias + self.time_bias[buckets]).unsqueeze(1)  # [b, 1, l, l]
        weights = F.silu(query @ key.transpose(-1, -2) + bias) / self.max_len
        mixed = weights.masked_fill(back < 0, 0.0) @ value
        mixed = mixed.transpose(1, 2).reshape(size, length, self.sizes[1])
        mixed = F.layer_norm(mixed, [mixed.shape[-1]], eps=self.eps)
        return x + self.out(self.dropout(mixed * gate))
