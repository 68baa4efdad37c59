"""Backward of relu layers on a GPU: what passes the relu, and its sum for the bias, in one pass.

torch reads the gradient twice, and its sums of columns of half precision take longer than the
layer's products.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1056  # that share rows and columns
ROWS = 32  # that a program reads at a time


# fmt: off
@triton.jit
def _relu_backward(grad, out, passed, parts, count, width, share, ROWS: tl.constexpr,
                   COLUMNS: tl.constexpr):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    wide = (column < width)[None, :]
    begin = tl.program_id(0) * share
    end = tl.minimum(begin + share, count)
    total = tl.zeros([COLUMNS], tl.float32)
    for start in range(begin, end, ROWS):
        row = start + tl.arange(0, ROWS)
        at = row[:, None].to(tl.int64) * width + column[None, :]
        here = (row < end)[:, None] & wide
        value = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        above = tl.load(out + at, mask=here, other=0.0).to(tl.float32) > 0
        value = tl.where(above, value, 0.0)
        tl.store(passed + at, value.to(passed.dtype.element_ty), mask=here)
        total += tl.sum(value, 0)
    tl.store(parts + tl.program_id(0) * width + column, total, mask=column < width)
# fmt: on


def relu_backward(grad: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients [n, width] where out [n, width] is above 0, and their sums [width]."""
    (count, width), passed = out.shape, torch.empty_like(out)
    columns = min(128, triton.next_power_of_2(width))
    blocks = triton.cdiv(width, columns)
    share = max(1, triton.cdiv(triton.cdiv(count, max(1, PROGRAMS // blocks)), ROWS)) * ROWS
    programs = max(1, triton.cdiv(count, share))
    parts = torch.empty(programs, width, device=out.device)
    _relu_backward[(programs, blocks)](
        grad.contiguous(), out, passed, parts, count, width, share, ROWS=ROWS, COLUMNS=columns
    )
    return passed, parts.sum(0).to(out.dtype)
