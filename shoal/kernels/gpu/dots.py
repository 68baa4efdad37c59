"""Dot products of all pairs of a sample's vectors on a GPU: one kernel forward, one backward.

torch.bmm writes all n * n products, reads them again to choose half of them, and backward writes
two gradients of the vectors to add them up. Here a sample's vectors are read once, and its products
leave the chip beside the first vector, as the layer behind them reads them:

    out  [ first | <v_1, v_0> | <v_2, v_0> <v_2, v_1> | ... | 0 0 ]      v_0 = first

Without a `first` there are the products of the vectors alone. Zeros fill up a multiple of 8
columns: products of other widths take slower kernels.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ALIGN = 8  # columns


# fmt: off
@triton.jit
def _vectors_of(first, vectors, sample, row, column, N: tl.constexpr, FIRST: tl.constexpr,
                DIM: tl.constexpr):
    """The vectors of a sample [rows, width], zeros behind them."""
    begin = vectors + sample * (N - FIRST) * DIM
    own = (row >= FIRST) & (row < N)
    value = tl.load(begin + (row[:, None] - FIRST) * DIM + column[None, :],
                    mask=own[:, None] & (column < DIM)[None, :], other=0.0)
    if FIRST:
        zeroth = tl.load(first + sample * DIM + column, mask=column < DIM, other=0.0)
        value = tl.where(row[:, None] == 0, zeroth.to(tl.float32)[None, :], value)
    return value


@triton.jit
def _dots(first, vectors, out, N: tl.constexpr, FIRST: tl.constexpr, DIM: tl.constexpr,
          WIDE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr,
          PRECISION: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    value = _vectors_of(first, vectors, sample, row, column, N, FIRST, DIM)
    dots = tl.dot(value, tl.trans(value), input_precision=PRECISION)
    to = out + sample * WIDE
    kind = out.dtype.element_ty
    if FIRST:
        zeroth = tl.load(first + sample * DIM + column, mask=column < DIM, other=0.0)
        tl.store(to + column, zeroth.to(kind), mask=column < DIM)
    place = FIRST * DIM + row[:, None] * (row[:, None] - 1) // 2 + row[None, :]
    tl.store(to + place, dots.to(kind), mask=(row[None, :] < row[:, None]) & (row[:, None] < N))
    end = FIRST * DIM + PAIRS + tl.arange(0, 8)
    tl.store(to + end, tl.zeros([8], kind), mask=end < WIDE)


@triton.jit
def _dots_backward(first, vectors, grad, grad_first, grad_vectors, N: tl.constexpr,
                   FIRST: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
                   WIDTH: tl.constexpr, PRECISION: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    value = _vectors_of(first, vectors, sample, row, column, N, FIRST, DIM)
    of = grad + sample * WIDE
    high = tl.maximum(row[:, None], row[None, :])
    low = tl.minimum(row[:, None], row[None, :])
    # Each product belongs to two vectors.
    both = tl.load(of + FIRST * DIM + high * (high - 1) // 2 + low,
                   mask=(high < N) & (high != low), other=0.0)
    made = tl.dot(both.to(tl.float32), value, input_precision=PRECISION)
    own = (row >= FIRST) & (row < N)
    begin = grad_vectors + sample * (N - FIRST) * DIM
    tl.store(begin + (row[:, None] - FIRST) * DIM + column[None, :], made,
             mask=own[:, None] & (column < DIM)[None, :])
    if FIRST:
        zeroth = tl.sum(tl.where(row[:, None] == 0, made, 0.0), 0)
        zeroth += tl.load(of + column, mask=column < DIM, other=0.0).to(tl.float32)
        tl.store(grad_first + sample * DIM + column, zeroth.to(grad_first.dtype.element_ty),
                 mask=column < DIM)
# fmt: on


class DotsOf(torch.autograd.Function):
    """first [b, d] or None, vectors [b, n, d] float32 -> [b, width], float32 or half as asked."""

    @staticmethod
    def forward(ctx: Any, first: Tensor | None, vectors: Tensor, half: bool) -> Tensor:
        vectors = vectors.contiguous()
        ctx.has_first = first is not None
        first = vectors if first is None else first.contiguous()
        ctx.save_for_backward(first, vectors)
        number, dim = vectors.shape[1] + ctx.has_first, vectors.shape[2]
        pairs = number * (number - 1) // 2
        width = -(-(ctx.has_first * dim + pairs) // ALIGN) * ALIGN
        kind = torch.bfloat16 if half else torch.float32
        out = torch.empty(len(vectors), width, dtype=kind, device=vectors.device)
        ctx.how = _shape(number, dim, ctx.has_first, width, half)
        if len(vectors):
            _dots[(len(vectors),)](first, vectors, out, PAIRS=pairs, **ctx.how)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        first, vectors = ctx.saved_tensors
        grad_vectors = torch.empty_like(vectors)
        grad_first = torch.empty_like(first) if ctx.has_first else None
        if len(vectors):
            _dots_backward[(len(vectors),)](
                first,
                vectors,
                grad.contiguous(),
                grad_vectors if grad_first is None else grad_first,
                grad_vectors,
                **ctx.how,
            )
        return grad_first, grad_vectors, None


def _shape(number: int, dim: int, first: bool, width: int, half: bool) -> dict[str, Any]:
    exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "N": number,
        "FIRST": int(first),
        "DIM": dim,
        "WIDE": width,
        "ROWS": max(16, triton.next_power_of_2(number)),
        "WIDTH": max(16, triton.next_power_of_2(dim)),
        "PRECISION": "ieee" if exact and not half else "tf32",
        "num_warps": 2,
    }
