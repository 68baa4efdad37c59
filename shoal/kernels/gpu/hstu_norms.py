"""The norms of HSTU's layers on a GPU, one kernel forward and one backward each.

    normed           (x - mean) / deviation, each row by itself
    normed and gated  normed(mixed) * gate, some of it dropped

Written out in torch each is several passes over all tokens, half of them in float32.
"""

# mypy: disable-error-code=no-untyped-def

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.common.mask_words import WORD, threshold
from shoal.kernels.gpu.dropout import mixed_key
from shoal.kernels.gpu.norm import kept_rows, standard


# fmt: off
@triton.jit
def _through(grad, value, scale, WIDTH: tl.constexpr):
    """Gradients of rows before `standard`."""
    along = tl.sum(grad * value, 1) / WIDTH
    return (grad - (tl.sum(grad, 1) / WIDTH)[:, None] - value * along[:, None]) * scale[:, None]


@triton.jit
def _where(count, stride, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    there = (row < count)[:, None] & (column < WIDTH)[None, :]
    return row, column, there, row.to(tl.int64)[:, None] * stride + column[None, :]


@triton.jit
def _normed(x, out, count, EPS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
            ROWS: tl.constexpr):
    _, _, there, at = _where(count, WIDTH, WIDTH, COLUMNS, ROWS)
    value, _ = standard(tl.load(x + at, mask=there, other=0.0).to(tl.float32), there, EPS, WIDTH)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def _normed_backward(x, grad, of_x, count, EPS: tl.constexpr, WIDTH: tl.constexpr,
                     COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    _, _, there, at = _where(count, WIDTH, WIDTH, COLUMNS, ROWS)
    value, scale = standard(tl.load(x + at, mask=there, other=0.0).to(tl.float32), there, EPS,
                             WIDTH)
    of_out = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
    tl.store(of_x + at, _through(of_out, value, scale, WIDTH).to(of_x.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["first"])
def _gated(mixed, gate, key, rows, out, first, count, stride, EPS: tl.constexpr,
           THRESHOLD: tl.constexpr, KEEP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
           ROWS: tl.constexpr, HAS_ROWS: tl.constexpr, DROPS: tl.constexpr):
    row, column, there, at = _where(count, WIDTH, WIDTH, COLUMNS, ROWS)
    value = tl.load(mixed + at, mask=there, other=0.0).to(tl.float32)
    value, _ = standard(value, there, EPS, WIDTH)
    _, _, _, at_gate = _where(count, stride, WIDTH, COLUMNS, ROWS)
    value *= tl.load(gate + at_gate, mask=there, other=0.0).to(tl.float32)
    if DROPS:
        value *= kept_rows(mixed_key(key), rows, first, row, column, row < count, THRESHOLD, KEEP,
                           WIDTH, HAS_ROWS)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["first"])
def _gated_backward(mixed, gate, key, rows, grad, of_mixed, of_gate, first, count, stride,
                    EPS: tl.constexpr, THRESHOLD: tl.constexpr, KEEP: tl.constexpr,
                    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
                    HAS_ROWS: tl.constexpr, DROPS: tl.constexpr):
    row, column, there, at = _where(count, WIDTH, WIDTH, COLUMNS, ROWS)
    value = tl.load(mixed + at, mask=there, other=0.0).to(tl.float32)
    value, scale = standard(value, there, EPS, WIDTH)
    _, _, _, at_gate = _where(count, stride, WIDTH, COLUMNS, ROWS)
    factor = tl.load(gate + at_gate, mask=there, other=0.0).to(tl.float32)
    of_out = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
    if DROPS:
        of_out *= kept_rows(mixed_key(key), rows, first, row, column, row < count, THRESHOLD, KEEP,
                           WIDTH, HAS_ROWS)
    tl.store(of_gate + at, (of_out * value).to(of_gate.dtype.element_ty), mask=there)
    through = _through(of_out * factor, value, scale, WIDTH)
    tl.store(of_mixed + at, through.to(of_mixed.dtype.element_ty), mask=there)
# fmt: on


class Normed(torch.autograd.Function):
    """x [n, width] -> as x, of the given type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        ctx.constants = _shape(x, eps)
        ctx.save_for_backward(x)
        out = torch.empty_like(x, dtype=dtype)
        if len(x):
            _normed[_grid(x, ctx.constants)](x, out, len(x), **ctx.constants)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        of_x = torch.empty_like(x)
        if len(x):
            _normed_backward[_grid(x, ctx.constants)](
                x, grad.contiguous(), of_x, len(x), **ctx.constants
            )
        return of_x, None, None


class NormedAndGated(torch.autograd.Function):
    """mixed, gate [n, width] -> as mixed; key, first and rows say what is dropped (dropout.py)."""

    @staticmethod
    def forward(
        ctx: Any,
        mixed: Tensor,
        gate: Tensor,
        eps: float,
        p: float,
        key: Tensor | None,
        first: int,
        rows: Tensor | None,
    ) -> Tensor:
        mixed = mixed.contiguous()
        gate = gate if gate.stride(1) == 1 else gate.contiguous()
        drops = key is not None and p > 0.0
        ctx.constants = {
            **_shape(mixed, eps),
            "THRESHOLD": threshold(p) if drops else 0,
            "KEEP": 1.0 / (1.0 - p) if p < 1.0 else 0.0,
            "HAS_ROWS": rows is not None,
            "DROPS": drops,
        }
        ctx.first = first & WORD
        # What a kernel is not to read (DROPS, HAS_ROWS) is some pointer.
        key = mixed if key is None else key
        rows = mixed if rows is None else rows
        ctx.save_for_backward(mixed, gate, key, rows)
        out = torch.empty_like(mixed)
        if len(mixed):
            _gated[_grid(mixed, ctx.constants)](
                mixed, gate, key, rows, out, ctx.first, len(mixed), gate.stride(0), **ctx.constants
            )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mixed, gate, key, rows = ctx.saved_tensors
        of_mixed = torch.empty_like(mixed)
        of_gate = torch.empty_like(mixed, dtype=gate.dtype)
        if len(mixed):
            _gated_backward[_grid(mixed, ctx.constants)](
                mixed, gate, key, rows, grad.contiguous(), of_mixed, of_gate, ctx.first, len(mixed),
                gate.stride(0), **ctx.constants
            )  # fmt: skip
        return of_mixed, of_gate, None, None, None, None, None


def _shape(x: Tensor, eps: float) -> dict[str, Any]:
    columns = triton.next_power_of_2(x.shape[1])
    return {"EPS": eps, "WIDTH": x.shape[1], "COLUMNS": columns, "ROWS": max(1, 2048 // columns)}


def _grid(x: Tensor, constants: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(len(x), constants["ROWS"]),)
