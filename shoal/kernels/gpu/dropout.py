"""Dropout on a GPU: one kernel that makes each value's mask where it is needed, and keeps none.

The bits are those of mask_words.py. The key is read on the device, so that a recorded step draws
other masks each time it is replayed.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.common.mask_words import WORD, threshold

TYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK = 1024


# fmt: off
@triton.jit
def mixed_key(key):
    """The 64 bits that a mask's words are made of."""
    mixed = tl.load(key).to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB
    return mixed ^ (mixed >> 31)


@triton.jit
def word_of(mixed, position):
    """32 random bits for each position; values are kept where they are not below the threshold."""
    word = position.to(tl.uint32) * 0x9E3779B9 + mixed.to(tl.uint32)
    word = (word ^ (word >> 16)) * 0x7FEB352D ^ (mixed >> 32).to(tl.uint32)
    return (word ^ (word >> 15)) * 0x846CA68B


@triton.jit(do_not_specialize=["first"])
def _mask(x, out, key, rows, first, count, THRESHOLD: tl.constexpr, SCALE: tl.constexpr,
          WIDTH: tl.constexpr, HAS_ROWS: tl.constexpr, BLOCK: tl.constexpr):
    mixed = mixed_key(key)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    if HAS_ROWS:
        row = tl.load(rows + at // WIDTH, mask=inside, other=0)
        position = (row + first) * WIDTH + at % WIDTH
    else:
        position = at + first
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(word_of(mixed, position) >= THRESHOLD, value * SCALE, 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)
# fmt: on


class Masked(torch.autograd.Function):
    """x with some values dropped, and their gradients too; key int64 [1] on x's device."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, p: float, key: Tensor, first: int, rows: Tensor | None
    ) -> Tensor:
        rows = None if rows is None else rows.contiguous()
        ctx.save_for_backward(key, rows)
        ctx.p, ctx.first = p, first
        x = x.contiguous()
        out = torch.empty_like(x)
        width = x.numel() // len(x)
        _mask[(triton.cdiv(x.numel(), BLOCK),)](
            x, out, key, key if rows is None else rows, first & WORD, x.numel(), threshold(p),
            1.0 / (1.0 - p), width, rows is not None, BLOCK
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        key, rows = ctx.saved_tensors
        return Masked.apply(grads[0], ctx.p, key, ctx.first, rows), None, None, None, None
