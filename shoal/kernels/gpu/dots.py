"""Dot products of all pairs of a sample's vectors on a GPU: one kernel forward, one backward.

torch.bmm writes all n * n products, reads them again to choose half of them, and backward writes
two gradients of the vectors to add them up. Here a sample's vectors are read once, and its products
leave the chip beside the first vector, as the layer behind them reads them:

    out  [ first | <v_1, v_0> | <v_2, v_0> <v_2, v_1> | ... | 0 0 ]      v_0 = first

Zeros fill up a multiple of 8 columns: products of other widths take slower kernels.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


# fmt: off
@triton.jit
def _vectors_of(first, vectors, sample, row, column, N: tl.constexpr, DIM: tl.constexpr):
    """The vectors of a sample [rows, width], zeros behind them."""
    begin = vectors + sample * (N - 1) * DIM
    own = (row >= 1) & (row < N)
    value = tl.load(begin + (row[:, None] - 1) * DIM + column[None, :],
                    mask=own[:, None] & (column < DIM)[None, :], other=0.0)
    zeroth = tl.load(first + sample * DIM + column, mask=column < DIM, other=0.0)
    return tl.where(row[:, None] == 0, zeroth.to(tl.float32)[None, :], value)


@triton.jit
def _dots(first, vectors, out, N: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
          ROWS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    value = _vectors_of(first, vectors, sample, row, column, N, DIM)
    dots = tl.dot(value, tl.trans(value), input_precision=PRECISION)
    to = out + sample * WIDE
    kind = out.dtype.element_ty
    zeroth = tl.load(first + sample * DIM + column, mask=column < DIM, other=0.0)
    tl.store(to + column, zeroth.to(kind), mask=column < DIM)
    place = DIM + row[:, None] * (row[:, None] - 1) // 2 + row[None, :]
    tl.store(to + place, dots.to(kind), mask=(row[None, :] < row[:, None]) & (row[:, None] < N))
    end = DIM + N * (N - 1) // 2 + tl.arange(0, 8)
    tl.store(to + end, tl.zeros([8], kind), mask=end < WIDE)


@triton.jit
def _dots_backward(first, vectors, grad, grad_first, grad_vectors, N: tl.constexpr,
                   DIM: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
                   PRECISION: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    value = _vectors_of(first, vectors, sample, row, column, N, DIM)
    of = grad + sample * WIDE
    high = tl.maximum(row[:, None], row[None, :])
    low = tl.minimum(row[:, None], row[None, :])
    # Each product belongs to two vectors.
    both = tl.load(of + DIM + high * (high - 1) // 2 + low,
                   mask=(high < N) & (high != low), other=0.0)
    of_values = tl.dot(both.to(tl.float32), value, input_precision=PRECISION)
    own = (row >= 1) & (row < N)
    begin = grad_vectors + sample * (N - 1) * DIM
    tl.store(begin + (row[:, None] - 1) * DIM + column[None, :], of_values,
             mask=own[:, None] & (column < DIM)[None, :])
    zeroth = tl.sum(tl.where(row[:, None] == 0, of_values, 0.0), 0)
    zeroth += tl.load(of + column, mask=column < DIM, other=0.0).to(tl.float32)
    tl.store(grad_first + sample * DIM + column, zeroth.to(grad_first.dtype.element_ty),
             mask=column < DIM)
# fmt: on


class DotsOf(torch.autograd.Function):
    """first [b, d], vectors [b, n, d] float32 -> [b, width], float32 or half as asked."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, vectors: Tensor, half: bool) -> Tensor:
        first, vectors = first.contiguous(), vectors.contiguous()
        ctx.save_for_backward(first, vectors)
        number, dim = vectors.shape[1] + 1, vectors.shape[2]
        width = -(-(dim + number * (number - 1) // 2) // 8) * 8
        kind = torch.bfloat16 if half else torch.float32
        out = torch.empty(len(vectors), width, dtype=kind, device=vectors.device)
        ctx.constants = _shape(number, dim, width, half)
        if len(vectors):
            _dots[(len(vectors),)](first, vectors, out, **ctx.constants)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        first, vectors = ctx.saved_tensors
        grad_first, grad_vectors = torch.empty_like(first), torch.empty_like(vectors)
        if len(vectors):
            _dots_backward[(len(vectors),)](
                first, vectors, grad.contiguous(), grad_first, grad_vectors, **ctx.constants
            )
        return grad_first, grad_vectors, None


def _shape(number: int, dim: int, width: int, half: bool) -> dict[str, Any]:
    exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "N": number,
        "DIM": dim,
        "WIDE": width,
        "ROWS": max(16, triton.next_power_of_2(number)),
        "WIDTH": max(16, triton.next_power_of_2(dim)),
        "PRECISION": "ieee" if exact and not half else "tf32",
        "num_warps": 2,
    }
