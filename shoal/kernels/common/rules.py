"""What kernels of rows need to know of an optimizer and of initial values, and their hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

# The finaliser of splitmix64 (public domain, Sebastiano Vigna): increment and two multipliers.
INCREMENT = 0x9E3779B97F4A7C15
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB
NORMAL_TERMS = 8  # 16-bit uniforms summed for one normal value: two words of four

RowRule = Any  # a RowOptimizer of optimizers/row_optimizer.py


@dataclass(frozen=True)
class Recipe:
    """What an engine needs to make a table's initial values: the kind, the key and one factor."""

    kind: str  # uniform, normal or constant
    key: int  # 64 bits, unsigned
    factor: float  # a float32 value: multiplies the integer (constant: is the value)


def signed(value: int) -> int:
    """The int64 with the low 64 bits of an integer."""
    return (value + 2**63) % 2**64 - 2**63


def mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64, whose products wrap as unsigned ones do."""
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * signed(MULTIPLIER_1)
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * signed(MULTIPLIER_2)
    return x ^ (x >> 31 & (1 << 33) - 1)
