"""A residual connection and the norm behind it on a GPU: one kernel forward, one backward.

    sum     x + dropout(change)
    normed  (sum - mean) / deviation * weight + bias, each row by itself

Dropout, the sum, the norm, and in backward the norm's gradients, their sum with those that passed
by, and dropout again are one pass over the rows each. Gradients of weight and bias are added up by
so many programs, each over its own rows, and then over programs: always in the same order.
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

PROGRAMS = 264  # that add up gradients of weight and bias


# fmt: off
@triton.jit
def kept_rows(mixed, rows, first, row, column, inside, THRESHOLD: tl.constexpr,
              KEEP: tl.constexpr, WIDTH: tl.constexpr, HAS_ROWS: tl.constexpr):
    """The mask's factors for some rows [rows, columns]."""
    if HAS_ROWS:
        place = (tl.load(rows + row, mask=inside, other=0) + first) * WIDTH
    else:
        place = row.to(tl.int64) * WIDTH + first
    return tl.where(word_of(mixed, place[:, None] + column[None, :]) >= THRESHOLD, KEEP, 0.0)


@triton.jit
def standard(value, there, EPS: tl.constexpr, WIDTH: tl.constexpr):
    """Rows with a mean of 0 and a deviation of 1, and one by their deviations."""
    value -= (tl.sum(value, 1) / WIDTH)[:, None]
    value = tl.where(there, value, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + EPS)
    return value * scale[:, None], scale


@triton.jit(do_not_specialize=["first"])
def _add_and_norm(x, change, weight, bias, key, rows, sums, normed, first, count,
                  EPS: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
                  WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
                  HAS_ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = row < count
    there = inside[:, None] & (column < WIDTH)[None, :]
    at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    kept = kept_rows(mixed_key(key), rows, first, row, column, inside, THRESHOLD, KEEP, WIDTH,
                     HAS_ROWS)
    value = tl.load(change + at, mask=there, other=0.0).to(tl.float32) * kept
    value += tl.load(x + at, mask=there, other=0.0)
    tl.store(sums + at, value, mask=there)
    value, _ = standard(value, there, EPS, WIDTH)
    factor = tl.load(weight + column, mask=column < WIDTH, other=0.0)
    shift = tl.load(bias + column, mask=column < WIDTH, other=0.0)
    tl.store(normed + at, value * factor[None, :] + shift[None, :], mask=there)


@triton.jit(do_not_specialize=["first"])
def _backward(sums, weight, key, rows, grad_sums, grad_normed, grad_x, grad_change, partial, first,
              count, EPS: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
              WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
              HAS_ROWS: tl.constexpr, HAS_SUMS: tl.constexpr):
    mixed = mixed_key(key)
    column = tl.arange(0, COLUMNS)
    factor = tl.load(weight + column, mask=column < WIDTH, other=0.0)
    of_weight = tl.zeros([COLUMNS], tl.float32)
    of_bias = tl.zeros([COLUMNS], tl.float32)
    for start in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = row < count
        there = inside[:, None] & (column < WIDTH)[None, :]
        at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        value, scale = standard(tl.load(sums + at, mask=there, other=0.0), there, EPS, WIDTH)
        grad = tl.load(grad_normed + at, mask=there, other=0.0)
        of_weight += tl.sum(grad * value, 0)
        of_bias += tl.sum(grad, 0)
        grad *= factor[None, :]
        along = tl.sum(grad * value, 1) / WIDTH
        grad -= (tl.sum(grad, 1) / WIDTH)[:, None] + value * along[:, None]
        grad *= scale[:, None]
        if HAS_SUMS:
            grad += tl.load(grad_sums + at, mask=there, other=0.0)
        tl.store(grad_x + at, grad, mask=there)
        kept = kept_rows(mixed, rows, first, row, column, inside, THRESHOLD, KEEP, WIDTH, HAS_ROWS)
        tl.store(grad_change + at, (grad * kept).to(grad_change.dtype.element_ty), mask=there)
    to = partial + tl.program_id(0) * 2 * WIDTH + column
    tl.store(to, of_weight, mask=column < WIDTH)
    tl.store(to + WIDTH, of_bias, mask=column < WIDTH)
# fmt: on


class AddedAndNormed(torch.autograd.Function):
    """x float32, change [..., width], weight, bias [width] -> sum, normed: as x.

    key, first and rows say which values of `change` are dropped, as in dropout.py.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        change: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        p: float,
        key: Tensor,
        first: int,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        x, change = x.contiguous(), change.contiguous()
        sums, normed = torch.empty_like(x), torch.empty_like(x)
        width = x.shape[-1]
        columns = triton.next_power_of_2(width)
        ctx.constants = {
            "EPS": eps,
            "THRESHOLD": threshold(p),
            "KEEP": 1.0 / (1.0 - p),
            "WIDTH": width,
            "COLUMNS": columns,
            "ROWS": max(1, 2048 // columns),
            "HAS_ROWS": rows is not None,
        }
        ctx.first, ctx.count, ctx.kind = first & WORD, x.numel() // width, change.dtype
        ctx.set_materialize_grads(False)
        rows = key if rows is None else rows.contiguous()
        ctx.save_for_backward(sums, weight, key, rows)
        if ctx.count:
            grid = (triton.cdiv(ctx.count, ctx.constants["ROWS"]),)
            _add_and_norm[grid](
                x,
                change,
                weight,
                bias,
                key,
                rows,
                sums,
                normed,
                ctx.first,
                ctx.count,
                **ctx.constants,
            )
        return sums, normed

    @staticmethod
    def backward(ctx: Any, grad_sums: Tensor | None, grad_normed: Tensor | None) -> tuple[Any, ...]:
        sums, weight, key, rows = ctx.saved_tensors
        grad_normed = torch.zeros_like(sums) if grad_normed is None else grad_normed.contiguous()
        passed = sums if grad_sums is None else grad_sums.contiguous()
        grad_x = torch.empty_like(sums)
        grad_change = torch.empty_like(sums, dtype=ctx.kind)
        programs = max(1, min(PROGRAMS, triton.cdiv(ctx.count, ctx.constants["ROWS"])))
        partial = sums.new_empty(programs, 2, ctx.constants["WIDTH"])
        _backward[(programs,)](
            sums, weight, key, rows, passed, grad_normed, grad_x, grad_change, partial, ctx.first,
            ctx.count, HAS_SUMS=grad_sums is not None, **ctx.constants
        )  # fmt: skip
        of_weight, of_bias = partial.sum(0)
        return grad_x, grad_change, of_weight, of_bias, None, None, None, None, None
