"""Products of float32 in Triton kernels, by tensor cores.

The tensor cores multiply halves. Of any numbers, `product` takes a float32 as the sum of three
bfloat16 (24 bits in all), and a product as the sum of the six partial products that matter, so that
its error is that of float32 rounding; where torch's own products may be rounded
(torch.set_float32_matmul_precision("high")), one of TF32 does. Of numbers whose size is known, two
float16 have 23 bits, and three partial products do the same: `halves_of` and `dot_halves`.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


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
def dot_parts(a, b, total):
    """total + a @ b of halves."""
    if INTERPRETED:  # which takes bfloat16 in a product for integers, and adds float16 up as such
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    else:
        return tl.dot(a, b, total)


@triton.jit
def halves_of(x):
    """float32 as the sum of two float16: to 23 bits or 2**-25, and below 65,504 alone."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def dot_halves(a_high, a_low, b_high, b_low, total):
    """total + a @ b, the smallest parts first."""
    total = dot_parts(a_low, b_high, total)
    total = dot_parts(a_high, b_low, total)
    return dot_parts(a_high, b_high, total)


@triton.jit
def product(a, b, total, FULL: tl.constexpr):
    """total + a @ b: of float32 as exact as FULL asks, of halves as they are."""
    if INTERPRETED or a.dtype != tl.float32:
        return dot_parts(a, b, total)
    elif FULL:
        a_high, a_middle, a_low = parts_of(a)
        b_high, b_middle, b_low = parts_of(b)
        total = dot_parts(a_low, b_high, total)  # the smallest first
        total = dot_parts(a_high, b_low, total)
        total = dot_parts(a_middle, b_middle, total)
        total = dot_parts(a_middle, b_high, total)
        total = dot_parts(a_high, b_middle, total)
        return dot_parts(a_high, b_high, total)
    else:
        return tl.dot(a, b, total, input_precision="tf32")
