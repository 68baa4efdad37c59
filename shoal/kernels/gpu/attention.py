"""Self-attention with dropout on a GPU: one kernel forward, one or two backward.

Written out in torch, scores, their softmax and what dropout leaves of it are three tensors of
[b, heads, l, l] that are written, read and kept for backward. Here a tile of them lives on the chip
and is made again in backward from each query's largest score and sum. Masks are those of
mask_words.py, at the places that the written-out softmax has, so that any slice of a batch, and the
CPU, agree on them.

Queries, keys and values are read from where their one layer wrote them, and so are gradients
written:

    packed  [n, 3, heads, d]   ->   out  [n, heads * d]

of b sequences of l places each, pads among them, or of sequences that begin where `starts` say.

Nothing is added up by atomics: a tile of queries goes over all keys, a tile of keys over all
queries. What lies at or behind the end of a sequence is not read, and is zero where it is there.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.common.mask_words import WORD, threshold
from shoal.kernels.gpu.dropout import mixed_key, word_of
from shoal.kernels.gpu.products import is_full, product


# fmt: off
@triton.jit
def _tile(begin, row, column, L, STRIDE: tl.constexpr, DIM: tl.constexpr):
    """Vectors of some places [places, width], zeros behind them."""
    return tl.load(begin + row[:, None] * STRIDE + column[None, :],
                   mask=(row < L)[:, None] & (column < DIM)[None, :], other=0.0)


@triton.jit
def _put(begin, row, column, value, L, STRIDE: tl.constexpr, DIM: tl.constexpr):
    tl.store(begin + row[:, None] * STRIDE + column[None, :], value.to(begin.dtype.element_ty),
             mask=(row < L)[:, None] & (column < DIM)[None, :])


@triton.jit
def _end_of(ends, sample, L, ENDS: tl.constexpr):
    end = L
    if ENDS:
        end = tl.load(ends + sample)
    return end


@triton.jit
def _start_of(starts, sample, L, STARTS: tl.constexpr):
    start = sample * L
    if STARTS:
        start = tl.load(starts + sample)
    return start


@triton.jit
def _head_of(starts, ends, L, HEADS: tl.constexpr, DIM: tl.constexpr, STARTS: tl.constexpr,
             ENDS: tl.constexpr):
    """A program's pair of sample and head, its sample and the end of that, and where its vectors
    begin in `packed` and in the output."""
    pair = tl.program_id(1).to(tl.int64)
    sample, head = pair // HEADS, pair % HEADS
    place = _start_of(starts, sample, L, STARTS)
    end = _end_of(ends, sample, L, ENDS)
    return pair, sample, end, (place * 3 * HEADS + head) * DIM, (place * HEADS + head) * DIM


@triton.jit
def _scores(query, key, pads, sample, row, other, L, end, SCALE: tl.constexpr,
            HIDDEN: tl.constexpr, CAUSAL: tl.constexpr, PADS: tl.constexpr, FULL: tl.constexpr):
    """[queries, keys]; what is hidden is far below the rest, what is not there infinitely."""
    nothing = tl.zeros([query.shape[0], key.shape[0]], tl.float32)
    score = product(query, tl.trans(key), nothing, FULL) * SCALE
    hidden = nothing
    if CAUSAL:
        hidden = tl.where(other[None, :] > row[:, None], HIDDEN, 0.0)
    if PADS:
        pad = tl.load(pads + sample * L + other, mask=other < end, other=0)
        hidden += tl.where(pad != 0, HIDDEN, 0.0)[None, :]
    return tl.where((other < end)[None, :], score + hidden, float("-inf"))


@triton.jit
def _kept(mixed, first, pair, row, other, L, THRESHOLD: tl.constexpr, KEEP: tl.constexpr):
    """The mask's factors [queries, keys]: value j of query i is at (pair * l + i) * l + j."""
    place = (pair * L + row)[:, None] * L + other[None, :] + first
    return tl.where(word_of(mixed, place) >= THRESHOLD, KEEP, 0.0)


@triton.jit(do_not_specialize=["first"])
def _attend(packed, pads, starts, ends, key, out, top, total, first, L, HEADS: tl.constexpr,
            DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SCALE: tl.constexpr,
            HIDDEN: tl.constexpr, CAUSAL: tl.constexpr, PADS: tl.constexpr,
            STARTS: tl.constexpr, ENDS: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
            FULL: tl.constexpr):
    pair, sample, end, inner, outer = _head_of(starts, ends, L, HEADS, DIM, STARTS, ENDS)
    mixed = mixed_key(key)
    column = tl.arange(0, WIDTH)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    begin = packed + inner
    query = _tile(begin, row, column, end, 3 * HEADS * DIM, DIM)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    whole = tl.zeros([BLOCK], tl.float32)
    mix = tl.zeros([BLOCK, WIDTH], tl.float32)
    last = tl.where(tl.program_id(0) * BLOCK < end, end, 0)
    if CAUSAL and not PADS:  # a query sees itself, so what comes later weighs nothing
        last = tl.minimum(last, (tl.program_id(0) + 1) * BLOCK)
    for start in range(0, last, BLOCK):
        other = start + tl.arange(0, BLOCK)
        keys = _tile(begin + HEADS * DIM, other, column, end, 3 * HEADS * DIM, DIM)
        values = _tile(begin + 2 * HEADS * DIM, other, column, end, 3 * HEADS * DIM, DIM)
        score = _scores(query, keys, pads, sample, row, other, L, end, SCALE, HIDDEN, CAUSAL, PADS,
                        FULL)
        higher = tl.maximum(most, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(most - higher)
        whole = whole * shrink + tl.sum(weight, 1)
        weight *= _kept(mixed, first, pair, row, other, L, THRESHOLD, KEEP)
        mix = product(weight.to(values.dtype), values, mix * shrink[:, None], FULL)
        most = higher
    mix = tl.where((row < end)[:, None], mix / whole[:, None], 0.0)
    edge = end if STARTS else L  # what lies behind is of the next sequence
    _put(out + outer, row, column, mix, edge, HEADS * DIM, DIM)
    tl.store(top + pair * L + row, most, mask=row < L)
    tl.store(total + pair * L + row, whole, mask=row < L)


@triton.jit
def _gradients(score, values, grad, output, top, total, kept, pair, row, L,
               end, FULL: tl.constexpr):
    """What dropout left of the softmax, and gradients of the scores: [queries, keys] each."""
    most = tl.load(top + pair * L + row, mask=row < end, other=0.0)
    whole = tl.load(total + pair * L + row, mask=row < end, other=1.0)
    weight = tl.exp(score - most[:, None]) / whole[:, None]
    nothing = tl.zeros_like(weight)
    of_kept = product(grad, tl.trans(values), nothing, FULL)
    through = tl.sum(grad.to(tl.float32) * output.to(tl.float32), 1)
    return weight * kept, weight * (of_kept * kept - through[:, None])


@triton.jit(do_not_specialize=["first"])
def _keys_backward(packed, pads, starts, ends, key, out, top, total, grad, grads, first, L,
                   HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
                   BLOCK: tl.constexpr, SCALE: tl.constexpr, HIDDEN: tl.constexpr,
                   CAUSAL: tl.constexpr, PADS: tl.constexpr, STARTS: tl.constexpr,
                   ENDS: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
                   FULL: tl.constexpr, ONE: tl.constexpr):
    """Gradients of a tile of keys and values; of queries too where the tile is the only ONE."""
    pair, sample, end, inner, outer = _head_of(starts, ends, L, HEADS, DIM, STARTS, ENDS)
    mixed = mixed_key(key)
    column = tl.arange(0, WIDTH)
    other = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keys = _tile(packed + inner + HEADS * DIM, other, column, end, 3 * HEADS * DIM, DIM)
    values = _tile(packed + inner + 2 * HEADS * DIM, other, column, end, 3 * HEADS * DIM, DIM)
    edge = end if STARTS else L
    of_keys = tl.zeros([BLOCK, WIDTH], tl.float32)
    of_values = tl.zeros([BLOCK, WIDTH], tl.float32)
    begin = 0
    last = tl.where(tl.program_id(0) * BLOCK < end, end, 0)
    if CAUSAL and not PADS:
        begin = tl.program_id(0) * BLOCK
    if ONE:  # it also writes the zeros of a sample without items
        last = tl.maximum(last, 1)
    for start in range(begin, last, BLOCK):
        row = start + tl.arange(0, BLOCK)
        query = _tile(packed + inner, row, column, end, 3 * HEADS * DIM, DIM)
        of_out = _tile(grad + outer, row, column, end, HEADS * DIM, DIM)
        output = _tile(out + outer, row, column, end, HEADS * DIM, DIM)
        score = _scores(query, keys, pads, sample, row, other, L, end, SCALE, HIDDEN, CAUSAL, PADS,
                        FULL)
        kept = _kept(mixed, first, pair, row, other, L, THRESHOLD, KEEP)
        left, of_score = _gradients(score, values, of_out, output, top, total, kept, pair,
                                    row, L, end, FULL)
        of_score = (of_score * SCALE).to(query.dtype)
        of_values = product(tl.trans(left).to(query.dtype), of_out, of_values, FULL)
        of_keys = product(tl.trans(of_score), query, of_keys, FULL)
        if ONE:
            nothing = tl.zeros([BLOCK, WIDTH], tl.float32)
            of_query = product(of_score, keys, nothing, FULL)
            _put(grads + inner, row, column, of_query, edge, 3 * HEADS * DIM, DIM)
    _put(grads + inner + HEADS * DIM, other, column, of_keys, edge, 3 * HEADS * DIM, DIM)
    _put(grads + inner + 2 * HEADS * DIM, other, column, of_values, edge, 3 * HEADS * DIM, DIM)


@triton.jit(do_not_specialize=["first"])
def _queries_backward(packed, pads, starts, ends, key, out, top, total, grad, grads, first, L,
                      HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
                      BLOCK: tl.constexpr, SCALE: tl.constexpr, HIDDEN: tl.constexpr,
                      CAUSAL: tl.constexpr, PADS: tl.constexpr, STARTS: tl.constexpr,
                      ENDS: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
                      FULL: tl.constexpr):
    pair, sample, end, inner, outer = _head_of(starts, ends, L, HEADS, DIM, STARTS, ENDS)
    mixed = mixed_key(key)
    column = tl.arange(0, WIDTH)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    query = _tile(packed + inner, row, column, end, 3 * HEADS * DIM, DIM)
    of_out = _tile(grad + outer, row, column, end, HEADS * DIM, DIM)
    output = _tile(out + outer, row, column, end, HEADS * DIM, DIM)
    edge = end if STARTS else L
    of_query = tl.zeros([BLOCK, WIDTH], tl.float32)
    last = tl.where(tl.program_id(0) * BLOCK < end, end, 0)
    if CAUSAL and not PADS:
        last = tl.minimum(last, (tl.program_id(0) + 1) * BLOCK)
    for start in range(0, last, BLOCK):
        other = start + tl.arange(0, BLOCK)
        keys = _tile(packed + inner + HEADS * DIM, other, column, end, 3 * HEADS * DIM, DIM)
        values = _tile(packed + inner + 2 * HEADS * DIM, other, column, end, 3 * HEADS * DIM, DIM)
        score = _scores(query, keys, pads, sample, row, other, L, end, SCALE, HIDDEN, CAUSAL, PADS,
                        FULL)
        kept = _kept(mixed, first, pair, row, other, L, THRESHOLD, KEEP)
        _, of_score = _gradients(score, values, of_out, output, top, total, kept, pair, row,
                                 L, end, FULL)
        of_score = (of_score * SCALE).to(query.dtype)
        of_query = product(of_score, keys, of_query, FULL)
    _put(grads + inner, row, column, of_query, edge, 3 * HEADS * DIM, DIM)
# fmt: on


class Attended(torch.autograd.Function):
    """packed [n, 3, heads, d] of some sequences of at most so many places -> [n, heads * d].

    pads: bool [b, l], starts: int64 [b], ends: int32 [b], each of them or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        packed: Tensor,
        sequences: int,
        length: int,
        pads: Tensor | None,
        starts: Tensor | None,
        ends: Tensor | None,
        p: float,
        key: Tensor,
        first: int,
        causal: bool,
        hidden: float,
    ) -> Tensor:
        packed = packed.contiguous()
        count, _, heads, dim = packed.shape
        # Rows that are of no sequence are zeros.
        out = (packed.new_empty if starts is None else packed.new_zeros)(count, heads * dim)
        top = torch.empty(sequences * heads * length, dtype=torch.float32, device=packed.device)
        total = torch.empty_like(top)
        # What a kernel is not to read (PADS, STARTS, ENDS) is some pointer.
        pad_bytes = key if pads is None else pads.contiguous().view(torch.uint8)
        start_places = key if starts is None else starts
        end_places = key if ends is None else ends
        ctx.first, ctx.sequences, ctx.length = first & WORD, sequences, length
        ctx.constants = _shape(packed, length, causal, p, hidden)
        ctx.constants |= {"PADS": pads is not None}
        ctx.constants |= {"STARTS": starts is not None, "ENDS": ends is not None}
        ctx.save_for_backward(packed, pad_bytes, start_places, end_places, key, out, top, total)
        if packed.numel():
            grid = (triton.cdiv(length, ctx.constants["BLOCK"]), sequences * heads)
            _attend[grid](
                packed,
                pad_bytes,
                start_places,
                end_places,
                key,
                out,
                top,
                total,
                ctx.first,
                length,
                **ctx.constants,
            )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        packed, pads, starts, ends, key, out, top, total = ctx.saved_tensors
        grads = (torch.zeros_like if ctx.constants["STARTS"] else torch.empty_like)(packed)
        if packed.numel():
            heads = packed.shape[2]
            grid = (triton.cdiv(ctx.length, ctx.constants["BLOCK"]), ctx.sequences * heads)
            tensors = [packed, pads, starts, ends, key, out, top, total, grad.contiguous(), grads]
            _keys_backward[grid](*tensors, ctx.first, ctx.length, ONE=grid[0] == 1, **ctx.constants)
            if grid[0] > 1:
                _queries_backward[grid](*tensors, ctx.first, ctx.length, **ctx.constants)
        return grads, *[None] * 10


def _shape(packed: Tensor, length: int, causal: bool, p: float, hidden: float) -> dict[str, Any]:
    _, _, heads, dim = packed.shape
    width = max(16, triton.next_power_of_2(dim))
    most = 64 if width * packed.element_size() <= 256 else 32  # what fits the chip
    return {
        "HEADS": heads,
        "DIM": dim,
        "WIDTH": width,
        "BLOCK": min(most, max(16, triton.next_power_of_2(length))),
        "SCALE": dim**-0.5,
        "HIDDEN": hidden,
        "CAUSAL": causal,
        "THRESHOLD": threshold(p),
        "KEEP": 1.0 / (1.0 - p),
        "FULL": is_full(),
        "num_warps": 4,
    }
