"""A layer of HSTU; its formula stands in shoal/models/sequential/hstu.py."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.kernels.common.sequences import (
    BUCKETS,
    Sequences,
    buckets_between,
    request_and_event_times,
)
from shoal.kernels.hstu import (
    hstu_attention,
    normed,
    normed_and_gated,
    plain_hstu_attention,
    plain_hstu_candidates,
    sequences_of,
    takes_hstu,
)
from shoal.models.nn.dropout import Dropout, draw_key
from shoal.models.nn.packing import pack, spread
from shoal.models.nn.transformer import split_heads

Past = tuple[Tensor, Tensor]  # keys and values of a layer, [b, heads, l, d] each
Parts = tuple[Tensor, ...]  # gate, values, queries and keys, heads side by side


@dataclass
class HSTUOptions:
    """Options of models with HSTU's layers."""

    n_layers: int = 2
    n_heads: int = 1
    hidden_size: int = 64
    attention_size: int | None = None  # width of a head's queries and keys; null: width / heads
    linear_size: int | None = None  # width of a head's values; null: width / heads
    hidden_dropout_prob: float = 0.2  # dropout of inputs
    linear_dropout_prob: float = 0.2  # dropout of gated values
    use_positions: bool = True  # bias attention by how many items back an item is
    use_times: bool = True  # bias attention by how long ago an item was taken
    layer_norm_eps: float = 1e-6


def places_of(
    x: Tensor, history: Tensor, times: Tensor | None, widest: int
) -> tuple[Tensor | None, Sequences | None]:
    """What layers over x [b, l, width], with heads no wider than `widest`, read of history [b, l],
    where 0 is a pad, and times [b, l + 1]: buckets, or sequences where there are kernels.
    """
    return places_between(x, history, *request_and_event_times(times), widest)


def places_between(
    x: Tensor,
    history: Tensor,
    request_times: Tensor | None,
    event_times: Tensor | None,
    widest: int,
) -> tuple[Tensor | None, Sequences | None]:
    """Buckets or sequences, as `places_of`, where request and event times are separate: [b, l]."""
    if takes_hstu(x, widest):
        return None, sequences_of(history, request_times, event_times)
    return buckets_of(request_times, event_times), None


def buckets_of(request_times: Tensor | None, event_times: Tensor | None) -> Tensor | None:
    """Buckets of the times between: [b, q], [b, l] -> [b, q, l]."""
    if request_times is None or event_times is None:
        return None
    return buckets_between(request_times, event_times)


def without_pads(x: Tensor, sequences: Sequences | None) -> Tensor:
    """x without the pads that `sequences` leaves out: [b, l, width] -> [tokens, width], or x."""
    if sequences is None or sequences.tokens is None:
        return x
    return pack(x, sequences.tokens)


def with_pads(x: Tensor, sequences: Sequences | None, size: int) -> Tensor:
    """Put zeros back where `without_pads` left out pads of `size` sequences."""
    if sequences is None or sequences.tokens is None:
        return x
    return spread(x, sequences.tokens, size, sequences.longest)


class HSTULayer(nn.Module):
    """One block: [b, l, width] -> [b, l, width], with HSTUOptions.

    Attention reads what `places_of` makes: buckets of times, [b, l, l] or None, or `sequences`, and
    then x is what `without_pads` leaves.
    """

    def __init__(self, options: Any, max_len: int):
        super().__init__()
        width, heads = options.hidden_size, options.n_heads
        attention = heads * (options.attention_size or width // heads)
        linear = heads * (options.linear_size or width // heads)
        self.heads, self.max_len, self.eps = heads, max_len, options.layer_norm_eps
        self.widest = max(attention, linear) // heads  # of a head
        self.sizes = [linear, linear, attention, attention]
        self.state_width = attention + linear
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
        return self.attended(x, self.parts(x, sequences), buckets, sequences)

    def parts(self, x: Tensor, sequences: Sequences | None = None) -> Parts:
        """What attention is made of: [b, l, ...] each, or [tokens, ...] of `sequences`."""
        if sequences is not None:
            x = normed(x.reshape(-1, x.shape[-1]), self.eps)
        else:
            x = F.layer_norm(x, [x.shape[-1]], eps=self.eps)
        return F.silu(x @ self.project).split(self.sizes, -1)

    def attended(
        self,
        x: Tensor,
        parts: Parts,
        buckets: Tensor | None,
        sequences: Sequences | None = None,
        past: Past | None = None,
    ) -> Tensor:
        """What x becomes; past: of places before it, which x sees too (without `sequences`)."""
        if sequences is not None:
            return x + self.out(self._by_kernels(parts, sequences)).view_as(x)
        gate, value, query, key = parts
        value, query, key = (split_heads(part, self.heads) for part in (value, query, key))
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        mixed = plain_hstu_attention(
            query, key, value, self.position_bias, self.time_bias, buckets, self.max_len
        )
        return self._gated(x, mixed, gate)

    def candidates(self, x: Tensor, past: Past, lengths: Tensor, buckets: Tensor | None) -> Tensor:
        """What candidates x [b, c, width] become: each sees the past, of which the first lengths
        [b] places are there, and itself; buckets [b, 1 or c, l]."""
        gate, *rest = self.parts(x)
        value, query, key = (split_heads(part, self.heads) for part in rest)
        mixed = plain_hstu_candidates(
            query,
            key,
            value,
            past,
            lengths,
            self.position_bias,
            self.time_bias,
            buckets,
            self.max_len,
        )
        return self._gated(x, mixed, gate)

    def past(self, parts: Parts, sequences: Sequences | None = None) -> Past:
        """Keys and values, side by side again."""
        _, value, _, key = parts
        if sequences is not None:
            size, longest = sequences.lengths.shape[0], sequences.longest
            key, value = (
                with_pads(x, sequences, size).reshape(-1, longest, x.shape[-1])
                for x in (key, value)
            )
        return split_heads(key, self.heads), split_heads(value, self.heads)

    def state(self, parts: Parts) -> Tensor:
        """Keys and values of places as one row for each: [b, l, state_width]."""
        return torch.cat([parts[3], parts[1]], -1)

    def past_of(self, state: Tensor) -> Past:
        """Keys and values that `state` put side by side: [b, heads, l, d] each."""
        key, value = state.split([self.sizes[3], self.sizes[1]], -1)
        return split_heads(key, self.heads), split_heads(value, self.heads)

    def _gated(self, x: Tensor, mixed: Tensor, gate: Tensor) -> Tensor:
        """x with mixed [b, heads, l, d] added to it."""
        mixed = mixed.transpose(1, 2).reshape(*x.shape[:2], self.sizes[1])
        mixed = F.layer_norm(mixed, [mixed.shape[-1]], eps=self.eps)
        return x + self.out(self.dropout(mixed * gate))

    def _by_kernels(self, parts: Parts, sequences: Sequences) -> Tensor:
        """What the last product reads: [tokens, linear]."""
        gate, *rest = parts
        value, query, key = (part.view(len(gate), self.heads, -1) for part in rest)
        mixed = hstu_attention(
            query, key, value, sequences, self.position_bias, self.time_bias, self.max_len
        )
        rows, mask_key, first = sequences.tokens, None, 0
        if self.training:
            each = sequences.longest if rows is not None else sequences.longest * self.sizes[1]
            mask_key, first = draw_key(gate.device, each)
        return normed_and_gated(
            mixed.flatten(1), gate, self.eps, self.dropout.p, mask_key, first, rows
        )
