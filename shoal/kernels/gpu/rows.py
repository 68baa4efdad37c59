"""Triton kernels of rows in a GPU's memory: Adam on touched rows, each of them once."""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import os

import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.rules import RowRule

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # when imported: kernels run on the CPU


def takes_cpu() -> bool:
    """Whether rows in a CPU's memory are for the interpreter: it was, and is still, asked for."""
    return INTERPRETED and os.environ.get("TRITON_INTERPRET") == "1"


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


@triton.jit
def _step_rows(ids, slots, sums, rows, firsts, seconds, numbers, padding, DIM: tl.constexpr,
               WIDTH: tl.constexpr, RATE_1: tl.constexpr, RATE_2: tl.constexpr,
               DECAY: tl.constexpr, DECOUPLED: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + place)
    if (tl.load(slots + place) == place) & (row != padding):
        column = tl.arange(0, WIDTH)
        inside = column < DIM
        at = row * DIM + column
        grad = tl.load(sums + place * DIM + column, mask=inside, other=0.0)
        value = tl.load(rows + at, mask=inside, other=0.0)
        first = tl.load(firsts + at, mask=inside, other=0.0)
        second = tl.load(seconds + at, mask=inside, other=0.0)
        value, first, second = adam(value, first, second, grad, numbers, RATE_1, RATE_2, DECAY,
                                    DECOUPLED)
        tl.store(rows + at, value, mask=inside)
        tl.store(firsts + at, first, mask=inside)
        tl.store(seconds + at, second, mask=inside)
# fmt: on


def step_rows(
    ids: Tensor,
    slots: Tensor,
    sums: Tensor,
    rows: tuple[Tensor, Tensor, Tensor],
    numbers: Tensor,
    padding: int | None,
    optimizer: RowRule,
) -> None:
    """A step of Adam of the rows of `ids` [n], by sums [n, dim] at those places that are slots.

    slots [n] names for each id one of its places: the same for all that are equal. rows: values,
    first and second moments; numbers: step size, eps and learning rate, on the device.
    """
    dim = sums.shape[1]
    if len(ids):
        _step_rows[(len(ids),)](
            ids,
            slots,
            sums,
            *rows,
            numbers,
            -1 if padding is None else padding,
            DIM=dim,
            WIDTH=triton.next_power_of_2(dim),
            num_warps=1,
            **constants(optimizer),
        )


def constants(optimizer: RowRule) -> dict[str, float | bool]:
    """What `adam` is compiled with."""
    return {
        "RATE_1": 1.0 - optimizer.betas[0],
        "RATE_2": 1.0 - optimizer.betas[1],
        "DECAY": optimizer.weight_decay,
        "DECOUPLED": optimizer.decoupled,
    }
