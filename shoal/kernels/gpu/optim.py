"""Row optimizers inside Triton kernels: the expressions of update_rows, in the same order.

Square roots and quotients are rounded as IEEE has it, and kernels are compiled without fused
multiply-add: a row that got the same gradient has the bits that the CPU core gives it (but for
means over a row, which are summed in another order).
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.common.rules import RowRule

NUMBERS = 4  # of a step, on the device: step size, eps, learning rate, what adamw keeps of a value
EXACT = {"enable_fp_fusion": False}  # how kernels that call `step` are launched


# fmt: off
@triton.jit
def step(value, first, second, grad, numbers, KIND: tl.constexpr, DIM: tl.constexpr,
         REST_1: tl.constexpr, REST_2: tl.constexpr, MOMENTUM: tl.constexpr, L1: tl.constexpr,
         L2: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr, CLIP: tl.constexpr):
    """New values and state of rows [n, width]; state of rowwise_adagrad: [n]."""
    size = tl.load(numbers)
    eps = tl.load(numbers + 1)
    if CLIP > 0:
        norm = tl.sqrt_rn(tl.sum(grad * grad, 1))
        grad = grad * tl.div_rn(CLIP + tl.zeros_like(norm), tl.maximum(norm, CLIP))[:, None]
    if KIND == "adamw":
        value = value * tl.load(numbers + 3)
    elif DECAY != 0:
        grad = grad + DECAY * value
    if KIND == "sgd":
        value -= grad * size
    elif KIND == "momentum":
        first = first * MOMENTUM + grad
        value -= first * size
    elif KIND == "adagrad":
        first += grad * grad
        value -= tl.div_rn(size * grad, tl.sqrt_rn(first) + eps)
    elif KIND == "rowwise_adagrad":
        mean = tl.sum(grad * grad, 1)
        first += tl.div_rn(mean, tl.zeros_like(mean) + DIM)
        root = tl.sqrt_rn(first) + eps
        value -= grad * tl.div_rn(tl.zeros_like(root) + size, root)[:, None]
    elif (KIND == "adam") | (KIND == "adamw"):
        first += (grad - first) * REST_1
        second += (grad * grad - second) * REST_2
        value -= tl.div_rn(size * first, tl.sqrt_rn(second) + eps)
    elif KIND == "rmsprop":
        first += (grad * grad - first) * REST_2
        value -= tl.div_rn(size * grad, tl.sqrt_rn(first) + eps)
    elif KIND == "ftrl":
        lr = tl.load(numbers + 2) + tl.zeros_like(grad)
        before = tl.sqrt_rn(first)
        first += grad * grad
        after = tl.sqrt_rn(first)
        second += grad - tl.div_rn(after - before, lr) * value
        weight = tl.div_rn(BETA + after, lr) + L2
        shrunk = tl.maximum(tl.abs(second) - L1, 0.0)
        shrunk = tl.where(second < 0, -shrunk, shrunk)
        # A value that never saw a gradient other than 0 has no weight yet and stays.
        safe = tl.where(weight > 0, weight, 1.0)
        value = tl.where(weight > 0, tl.div_rn(-shrunk, safe), value)
    else:
        tl.static_assert(False, "no form of this row optimizer")
    return value, first, second


@triton.jit(do_not_specialize=["count"])
def _write_numbers(numbers, steps, size, eps, lr, keep, count):
    tl.store(numbers, size)
    tl.store(numbers + 1, eps)
    tl.store(numbers + 2, lr)
    tl.store(numbers + 3, keep)
    tl.store(steps, count.to(tl.int64))
# fmt: on


def write_numbers(
    numbers: Tensor, steps: Tensor, optimizer: RowRule, lr: float, count: int
) -> None:
    """What step `count` needs, into numbers [4] float32 and steps [1] int64, without a copy."""
    now = optimizer.numbers(lr, count)
    _write_numbers[(1,)](numbers, steps, now.size, now.eps, now.lr, now.keep, count, num_warps=1)


def constants(optimizer: RowRule, dim: int) -> dict[str, Any]:
    """What `step` is compiled with."""
    if optimizer.triton_form is None:
        raise ValueError(f"there is no Triton form of the row optimizer {optimizer.name}")
    first, second = optimizer.betas or (0.0, 0.0)
    if optimizer.alpha is not None:
        second = optimizer.alpha
    return {
        "KIND": optimizer.triton_form,
        "DIM": dim,
        "REST_1": 1.0 - first,
        "REST_2": 1.0 - second,
        "MOMENTUM": optimizer.momentum or 0.0,
        "L1": optimizer.l1 or 0.0,
        "L2": optimizer.l2 or 0.0,
        "BETA": optimizer.beta or 0.0,
        "DECAY": optimizer.weight_decay or 0.0,
        "CLIP": optimizer.clip or 0.0,
    }


def make_state(optimizer: RowRule, rows: int, dim: int, device: Any) -> dict[str, Tensor]:
    """State of rows that never learned: each [rows] or [rows, dim] float32."""
    begin = optimizer.initial_state()
    return {
        key: torch.full((rows,) if kind == "row" else (rows, dim), begin[key], device=device)
        for key, kind in optimizer.state_names().items()
    }
