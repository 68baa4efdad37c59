"""Adam inside Triton kernels that update every row of a table."""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import triton
import triton.language as tl

from shoal.kernels.rules import RowRule


# fmt: off
@triton.jit
def adam(value, first, second, grad, numbers, RATE_1: tl.constexpr, RATE_2: tl.constexpr,
         DECAY: tl.constexpr, DECOUPLED: tl.constexpr):
    """New value, first and second moment; numbers: step size, eps, learning rate."""
    if DECOUPLED:
        value = value * (1.0 - tl.load(numbers + 2) * DECAY)
    else:
        grad = grad + DECAY * value
    first += (grad - first) * RATE_1
    second += (grad * grad - second) * RATE_2
    step = tl.load(numbers) * first / (tl.sqrt(second) + tl.load(numbers + 1))
    return value - step, first, second


# fmt: on


def constants(optimizer: RowRule) -> dict[str, float | bool]:
    """What `adam` is compiled with."""
    return {
        "RATE_1": 1.0 - optimizer.betas[0],
        "RATE_2": 1.0 - optimizer.betas[1],
        "DECAY": optimizer.weight_decay,
        "DECOUPLED": optimizer.decoupled,
    }
