"""A transformer in plain torch: causal (a position sees itself and what came before) or not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.kernels.dropout import drop
from shoal.kernels.products import products_of
from shoal.kernels.transformer import (
    add_and_norm,
    attend,
    attend_ragged,
    takes_attention,
    takes_norm,
)
from shoal.models.nn.dropout import Dropout, draw_key, recomputed
from shoal.models.nn.dropout import dropout as drop_out
from shoal.models.nn.mlp import begin_normal
from shoal.models.nn.packing import (
    LengthGroup,
    Packed,
    RaggedRows,
    ends_of,
    pack,
    rows_of,
    spread,
)

Activation = Literal["gelu", "relu", "swish", "tanh", "sigmoid"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
assert tuple(ACTIVATIONS) == get_args(Activation)
Dropped = Callable[[Tensor], Tensor]  # what dropout makes of weights
HIDDEN = -1e9  # not -inf: a row of pads alone has no position to see, and must not become NaN


def feed_forward(width: int, inner: int, activation: Activation = "relu") -> nn.Sequential:
    """Two layers, which look at one position: [..., width] -> [..., width]."""
    return nn.Sequential(
        nn.Linear(width, inner), ACTIVATIONS[activation](), nn.Linear(inner, width)
    )


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[b, l, d] -> [b, heads, l, d / heads]."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


class Transformer(nn.Module):
    """Pre-norm blocks and a last norm: [b, l, width] -> [b, l, width]."""

    recompute = False  # whether backward computes layers again instead of keeping what they made

    def __init__(
        self,
        layers: int,
        heads: int,
        width: int,
        inner_width: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation: Activation = "gelu",
        norm_eps: float = 1e-12,
        init_std: float = 0.02,
        *,
        causal: bool,
    ):
        super().__init__()
        if width % heads:
            raise ValueError(
                f"a width of {width} does not divide into {heads} heads of equal width; "
                "make model.hidden_size a multiple of model.n_heads"
            )
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            attention = Attention(heads, width, attention_dropout, causal=causal)
            feed = feed_forward(width, inner_width, activation)
            self.blocks += [
                Residual(attention, width, dropout, norm_eps),
                Residual(feed, width, dropout, norm_eps),
            ]
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.state_width = 2 * width * layers  # keys and values of a place, which `extended` reads
        begin_normal(self, init_std)

    @classmethod
    def of(cls, options: Any, width: int, std: float = 0.02, *, causal: bool) -> Transformer:
        """One as a model's options (sequential.base.AttentionOptions) describe it."""
        return cls(
            options.n_layers,
            options.n_heads,
            width,
            options.inner_size or 4 * width,
            options.hidden_dropout_prob,
            options.attn_dropout_prob,
            options.hidden_act,
            options.layer_norm_eps,
            std,
            causal=causal,
        )

    def forward(
        self,
        x: Tensor,
        pads: Tensor | None = None,
        wanted: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """States of all positions, or of the `wanted` ones ([n], counted in [b * l]): [n, width].

        pads, bool [b, l]: positions after the items of a sequence, which no item sees. Their states
        mean nothing: where leaving them out is faster, nothing is computed for them (`packs`).
        tokens, [n]: with `wanted`, the positions that are no pads, where they were counted before.
        """
        blocks, normed = cast("list[Residual]", list(self.blocks)), None
        shape, packed, ends = x.shape[:2], None, None
        if self.training and pads is not None and blocks:
            packed = self._packs(x, pads, tokens if wanted is not None else None)
            ends = ends_of(pads) if x.is_cuda and packed is None else None
        if packed is not None:
            x = pack(x, packed.tokens)
        for number in range(0, len(blocks), 2):
            attention, feed_forward = blocks[number : number + 2]
            last = number + 2 == len(blocks)
            after = self.norm if last else blocks[number + 2].norm
            # After the last attention positions are independent: only those asked for continue.
            layer_wanted = wanted if last else None
            layer = partial(
                _layer, attention, feed_forward, after, pads, ends, packed, layer_wanted
            )
            if self.recompute and self.training:  # of what lies between layers x alone is kept
                x, normed = recomputed(layer, x, None)
            else:
                x, normed = layer(x, normed)
        states = self.norm(x) if normed is None else normed
        if packed is None or (wanted is not None and blocks):
            return states
        return spread(states, packed.tokens, *shape)

    def by_layer(self, x: Tensor, pads: Tensor) -> list[Tensor]:
        """States of all positions after each layer, normed, the first layer first: [b, l, d]."""
        blocks, normed, states = cast("list[Residual]", list(self.blocks)), None, []
        for number in range(0, len(blocks), 2):
            attention, feed_forward = blocks[number : number + 2]
            last = number + 2 == len(blocks)
            after = self.norm if last else blocks[number + 2].norm
            x, normed = _layer(attention, feed_forward, after, pads, None, None, None, x, normed)
            states.append(normed)
        return states

    def _packs(self, x: Tensor, pads: Tensor, tokens: Tensor | None) -> Packed | RaggedRows | None:
        """How layers read x without its pads; None: they read all of it."""
        attention = cast("Any", self.blocks[0]).layer
        width = x.shape[2] // attention.heads
        if tokens is not None and takes_attention(x, width, attention.dropout):
            return RaggedRows.of(pads, tokens)
        return packs(x, pads)

    def extended(self, x: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """New places x [m, width] of a sequence behind n that are kept [n, state_width].

        Returns what to keep of them, [m, state_width], and their states, [m, width]; causal, and
        without dropout.
        """
        blocks, rows = cast("list[Any]", list(self.blocks)), []
        pasts = kept.chunk(len(blocks) // 2, 1)
        for attention, feed, past in zip(blocks[::2], blocks[1::2], pasts):
            change, own = attention.layer.extended(attention.norm(x), past)
            rows.append(own)
            x = x + change
            x = x + feed.layer(feed.norm(x))
        return torch.cat(rows, 1), self.norm(x)


def packs(x: Tensor, pads: Tensor) -> Packed | None:
    """How layers read x [b, l, width] without its pads, bool [b, l], on a CPU; None: all of it.

    From a quarter of pads on: with fewer, gathering costs about what they do. On a GPU whoever
    records steps counts the others before (graphed.py); else attention alone leaves pads out.
    """
    if not x.is_cpu or torch.compiler.is_compiling():
        return None
    return Packed.of(pads) if 4 * int(pads.sum()) > pads.numel() else None


def _layer(
    attention: Residual,
    feed_forward: Residual,
    after: nn.LayerNorm,
    pads: Tensor | None,
    ends: Tensor | None,
    packed: Packed | RaggedRows | None,
    wanted: Tensor | None,
    x: Tensor,
    normed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """x after both, and its norm for what comes after; x is [b, l, width], or [n, width] if packed.

    With `wanted` [n], counted in [b * l], only those leave attention, [n, width]. The dropout of
    rows is what it would be among all.
    """
    length = x.shape[1] if packed is None else packed.length
    if attention.layer.causal:
        pads = None  # they come after the items, and nobody sees later ones
    normed = attention.norm(x) if normed is None else normed
    change = attention.layer(normed, pads, wanted, packed, ends)
    rows = wanted
    if packed is not None:
        x = x if wanted is None else x.index_select(0, rows_of(packed.tokens, wanted))
        rows = packed.tokens if wanted is None else wanted
    elif wanted is not None:
        x = x.flatten(0, 1).index_select(0, wanted)
    x, normed = _join(x, change, attention.dropout, feed_forward.norm, rows, length)
    return _join(x, feed_forward.layer(normed), feed_forward.dropout, after, rows, length)


def _join(
    x: Tensor, change: Tensor, dropout: Dropout, norm: nn.LayerNorm, rows: Tensor | None, each: int
) -> tuple[Tensor, Tensor]:
    """x + dropout(change), and its norm: as x each."""
    if dropout.training and takes_norm(x, change, norm.weight, dropout.p):
        masks = draw_key(x.device, x.shape[1:].numel() if rows is None else each)
        return add_and_norm(x, change, norm, dropout.p, *masks, rows)
    x = x + dropout(change, rows, each)
    return x, norm(x)


class Residual(nn.Module):
    """x + dropout(layer(norm(x))): [b, l, width] -> the same."""

    def __init__(self, layer: nn.Module, width: int, dropout: float, norm_eps: float):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.layer = layer
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.layer(self.norm(x)))


class Attention(nn.Module):
    """Multi-head self-attention; causal: to itself and those before. [b, l, width] -> same.

    With `wanted` ([n], counted in [b * l]) only those places look at others: [n, width]. Where x is
    packed, [n, width] -> the same. A kernel of a GPU reads nothing from `ends` ([b]) on.
    """

    def __init__(self, heads: int, width: int, dropout: float, *, causal: bool):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.causal = causal
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        x: Tensor,
        pads: Tensor | None = None,
        wanted: Tensor | None = None,
        packed: Packed | RaggedRows | None = None,
        ends: Tensor | None = None,
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if packed is not None:
            qkv = self.query_key_value(x)
            if isinstance(packed, RaggedRows):
                mixed = self._attend_ragged(qkv, packed, dropout)
            else:
                mixed = self._attend_packed(qkv, packed, dropout)
            return self.out(mixed if wanted is None else mixed[rows_of(packed.tokens, wanted)])
        size, length, width = x.shape
        split = self.query_key_value(x).view(size, length, 3, self.heads, width // self.heads)
        if takes_attention(split, width // self.heads, dropout):
            key, first = draw_key(x.device, self.heads * length * length)
            mixed = attend(split, pads, ends, dropout, key, first, self.causal, HIDDEN)
        else:
            dropped = partial(drop_out, p=dropout) if dropout else None
            mixed = self._attend(split, pads, dropped).transpose(1, 2).reshape(size, length, width)
        return self.out(mixed if wanted is None else mixed.flatten(0, 1).index_select(0, wanted))

    def extended(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """One layer of `Transformer.extended`; past: keys beside values, [n, 2 * width]."""
        query, own = self.query_key_value(x).split([x.shape[1], 2 * x.shape[1]], 1)
        key, value = torch.cat([past, own]).chunk(2, 1)
        query, key, value = (
            split_heads(part.unsqueeze(0), self.heads) for part in (query, key, value)
        )
        place = torch.arange(key.shape[2], device=x.device)
        later = place > place[past.shape[0] :].unsqueeze(1)  # [m, n + m]
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
        mixed = scores.masked_fill(later, HIDDEN).softmax(-1) @ value
        return self.out(mixed.squeeze(0).transpose(0, 1).flatten(1)), own

    def _attend_ragged(self, qkv: Tensor, packed: RaggedRows, rate: float) -> Tensor:
        """By a kernel: [n, 3 * width] -> [n, width]."""
        split = qkv.view(qkv.shape[0], 3, self.heads, -1)
        key, first = draw_key(qkv.device, self.heads * packed.length * packed.length)
        return attend_ragged(
            split,
            packed.length,
            packed.starts,
            packed.ends,
            rate,
            key,
            first,
            self.causal,
            HIDDEN,
        )

    def _attend_packed(self, qkv: Tensor, packed: Packed, rate: float) -> Tensor:
        """Group by group: [n, 3 * width] -> [n, width]."""
        width = qkv.shape[1] // 3
        masks = draw_key(qkv.device, self.heads * packed.length) if rate else None
        sizes = [group.pads.numel() for group in packed.groups]
        mixed = []
        for group, part in zip(packed.groups, qkv.index_select(0, packed.places).split(sizes)):
            split = part.view(*group.pads.shape, 3, self.heads, width // self.heads)
            dropped = None
            if masks is not None:
                dropped = partial(self._drop, group, packed.length, rate, masks)
            pads = None if self.causal else group.pads
            mixed.append(self._attend(split, pads, dropped).transpose(1, 2).reshape(-1, width))
        return torch.cat(mixed).index_select(0, packed.back)

    def _drop(
        self, group: LengthGroup, length: int, rate: float, masks: tuple[Any, int], weights: Tensor
    ) -> Tensor:
        """Dropout of a group's weights [g, heads, m, m], as among [b, heads, length, length]."""
        if rate == 1.0:
            return weights * 0.0
        count = weights.shape[2]
        pair = group.samples.unsqueeze(1) * self.heads + torch.arange(self.heads)
        rows = (pair.unsqueeze(2) * length + torch.arange(count)).view(-1)
        qkv = drop(weights.view(-1, count), rate, masks[0], masks[1], rows, length)
        return qkv.view(weights.shape)

    def _attend(self, split: Tensor, pads: Tensor | None, dropped: Dropped | None) -> Tensor:
        """By torch's functions: [b, l, 3, heads, d] -> [b, heads, l, d]."""
        query, key, value = split.permute(2, 0, 3, 1, 4)
        if dropped is not None:
            hidden = self._hidden(pads, split.shape[1], split)
            return _attend_with_dropout(query, key, value, dropped, hidden)
        if self.causal and pads is None:  # known to the fused one without a mask
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = self._hidden(pads, split.shape[1], split)
        return F.scaled_dot_product_attention(query, key, value, hidden)

    def _hidden(self, pads: Tensor | None, length: int, like: Tensor) -> Tensor | None:
        """What is added to the scores of pairs that may not see each other; None: all may."""
        hidden = None
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=like.device).triu(1)
            hidden = torch.zeros_like(later, dtype=like.dtype).masked_fill_(later, HIDDEN)
        if pads is not None:
            padded = pads.to(like.dtype)[:, None, None, :] * HIDDEN  # [b, 1, 1, l]
            hidden = padded if hidden is None else hidden + padded
        return hidden


def _attend_with_dropout(
    query: Tensor, key: Tensor, value: Tensor, dropped: Dropped, hidden: Tensor | None
) -> Tensor:
    """Attention, written out: torch's fused one draws other masks, which no slice agrees on.

    On CPUs it falls back where there is dropout, and takes about five times as long as this on ARM,
    where products with transposed ones are slow.
    """
    product = _Product.apply if query.is_cpu else torch.matmul
    scores = product(query * query.shape[-1] ** -0.5, key.transpose(-1, -2))
    if hidden is not None:
        scores = scores + hidden
    return product(dropped(scores.softmax(-1)), value)


class _Product(torch.autograd.Function):
    """a @ b whose right factors are always contiguous, also in backward."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return products_of(a, b.contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        grad = grads[0].contiguous()
        left = products_of(grad, b.transpose(-1, -2).contiguous())
        return left, products_of(a.transpose(-1, -2), grad)
