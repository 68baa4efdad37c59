"""Products of float32 in Triton kernels, by tensor cores.

The tensor cores multiply bfloat16: a float32 is taken as the sum of three of them (24 bits in all),
and a product as the sum of the six partial products that matter, so that its error is that of
float32 rounding. Where torch's own products may be rounded
(torch.set_float32_matmul_precision("high")), two parts and three products do.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import torch
import triton
import triton.language as tl

from shoal.embedding.leaves import triton_rows

INTERPRETED = tl.constexpr(triton_rows.INTERPRETED)


def is_full() -> bool:
    """Whether products must be those of float32."""
    return torch.get_float32_matmul_precision() == "highest"


@triton.jit
def parts_of(x):
    """float32 as the sum of three bfloat16."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _dot_parts(a, b, total):
    if INTERPRETED:  # which takes bfloat16 in a product for integers
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    else:
        return tl.dot(a, b, total)


@triton.jit
def dotted(a_high, a_middle, a_low, b_high, b_middle, b_low, total, FULL: tl.constexpr):
    """total + a @ b, the smallest parts first."""
    if FULL:
        total = _dot_parts(a_low, b_high, total)
        total = _dot_parts(a_high, b_low, total)
        total = _dot_parts(a_middle, b_middle, total)
    total = _dot_parts(a_middle, b_high, total)
    total = _dot_parts(a_high, b_middle, total)
    return _dot_parts(a_high, b_high, total)


@triton.jit
def product(a, b, total, FULL: tl.constexpr):
    """total + a @ b: of float32 as exact as FULL asks, of halves as they are."""
    if INTERPRETED or a.dtype != tl.float32:
        return _dot_parts(a, b, total)
    elif FULL:
        a_high, a_middle, a_low = parts_of(a)
        b_high, b_middle, b_low = parts_of(b)
        return dotted(a_high, a_middle, a_low, b_high, b_middle, b_low, total, True)
    else:
        return tl.dot(a, b, total, input_precision="tf32")
