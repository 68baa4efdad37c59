"""Triton kernels of the rows in a GPU's memory: a softmax over all of them, and Adam.

    pool        forward: logits of a slice of the rows, their sum of exponentials and the mean row
                under the softmax, kept as an online maximum; each program takes one slice
    combine     the slices of a position become its loss and the gradient of its state
    update      logits again, now with their normaliser: gradients of a block of rows, and Adam on
                it before it leaves the chip; gradients of the rows are never written
    step_rows   Adam on touched rows, each once

Logits are never written either. Products are of float32 precision: three products of TF32 numbers
(`tf32x3`), whose error is that of float32 rounding; one where torch's own may round to TF32.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.embedding.optim import RowOptimizer

DIMS = (16, 32, 64, 128, 256)  # widths that the softmax kernels are written for
LOWEST = tl.constexpr(-1e30)  # below any logit, and finite: differences of it are numbers
PROGRAMS = 264  # at least so many share the rows: two for each multiprocessor of a large GPU


@triton.jit
def _pool(
    hidden,
    rows,
    bias,
    tops,
    sums,
    pools,
    count,
    stop,
    share,
    HAS_BIAS: tl.constexpr,
    DIM: tl.constexpr,
    POSITIONS: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    place = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    split = tl.program_id(1)
    column = tl.arange(0, DIM)
    real = place < count
    states = tl.load(hidden + place[:, None] * DIM + column[None, :], mask=real[:, None], other=0.0)
    top = tl.full([POSITIONS], LOWEST, tl.float32)
    total = tl.zeros([POSITIONS], tl.float32)
    pooled = tl.zeros([POSITIONS, DIM], tl.float32)
    end = tl.minimum(split * share + share, stop)
    for start in range(split * share, end, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row > 0) & (row < end)
        block = tl.load(
            rows + row[:, None].to(tl.int64) * DIM + column[None, :],
            mask=inside[:, None],
            other=0.0,
        )
        logits = tl.dot(states, tl.trans(block), input_precision=PRECISION)
        if HAS_BIAS:
            logits += tl.load(bias + row, mask=inside, other=0.0)[None, :]
        logits = tl.where(inside[None, :], logits, float("-inf"))
        higher = tl.maximum(top, tl.max(logits, 1))
        shrink = tl.exp(top - higher)
        weight = tl.exp(logits - higher[:, None])
        total = total * shrink + tl.sum(weight, 1)
        pooled = tl.dot(weight, block, pooled * shrink[:, None], input_precision=PRECISION)
        top = higher
    at = split * count + place
    tl.store(tops + at, top, mask=real)
    tl.store(sums + at, total, mask=real)
    tl.store(pools + at[:, None].to(tl.int64) * DIM + column[None, :], pooled, mask=real[:, None])


@triton.jit
def _combine(
    hidden,
    rows,
    bias,
    targets,
    tops,
    sums,
    pools,
    losses,
    normalizers,
    grads,
    count,
    splits,
    HAS_BIAS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    place = tl.program_id(0)
    column = tl.arange(0, DIM)
    every = tl.arange(0, SPLITS)
    top = tl.max(tl.load(tops + every * count + place, mask=every < splits, other=LOWEST), 0)
    total = 0.0
    pooled = tl.zeros([DIM], tl.float32)
    for start in range(0, splits, CHUNK):
        some = start + tl.arange(0, CHUNK)
        known = some < splits
        at = some * count + place
        weight = tl.exp(tl.load(tops + at, mask=known, other=LOWEST) - top)
        total += tl.sum(weight * tl.load(sums + at, mask=known, other=0.0), 0)
        part = tl.load(
            pools + at[:, None].to(tl.int64) * DIM + column[None, :],
            mask=known[:, None],
            other=0.0,
        )
        pooled += tl.sum(weight[:, None] * part, 0)
    target = tl.load(targets + place)
    state = tl.load(hidden + place * DIM + column)
    wanted = tl.load(rows + target * DIM + column)
    logit = tl.sum(state * wanted, 0)
    if HAS_BIAS:
        logit += tl.load(bias + target)
    normalizer = top + tl.log(total)
    real = target > 0
    tl.store(losses + place, tl.where(real, normalizer - logit, 0.0))
    # Infinite: every probability of a position that does not count becomes 0.
    tl.store(normalizers + place, tl.where(real, normalizer, float("inf")))
    tl.store(grads + place * DIM + column, tl.where(real, pooled / total - wanted, 0.0))


@triton.jit
def _numbers(steps, lrs, LOG_1: tl.constexpr, LOG_2: tl.constexpr, EPS: tl.constexpr,
             SPARSE_EPS: tl.constexpr):  # fmt: skip
    """Step size and eps with the bias corrections folded in, from numbers on the device."""
    step = tl.load(steps).to(tl.float64)
    lr = tl.load(lrs)
    correction_1 = 1.0 - tl.exp(step * LOG_1)
    correction_2 = tl.sqrt(1.0 - tl.exp(step * LOG_2))
    size = (lr * correction_2 / correction_1).to(tl.float32)
    if SPARSE_EPS:
        eps = (correction_2 * 0.0 + EPS).to(tl.float32)
    else:
        eps = (correction_2 * EPS).to(tl.float32)
    return size, eps, lr.to(tl.float32)


@triton.jit
def _adam(value, first, second, grad, size, eps, lr, RATE_1: tl.constexpr, RATE_2: tl.constexpr,
          DECAY: tl.constexpr, DECOUPLED: tl.constexpr):  # fmt: skip
    if DECOUPLED:
        value = value * (1.0 - lr * DECAY)
    else:
        grad = grad + DECAY * value
    first += (grad - first) * RATE_1
    second += (grad * grad - second) * RATE_2
    return value - size * first / (tl.sqrt(second) + eps), first, second


@triton.jit
def _update(
    hidden,
    targets,
    normalizers,
    scale,
    rows,
    firsts,
    seconds,
    bias,
    bias_firsts,
    bias_seconds,
    steps,
    lrs,
    count,
    num_rows,
    stop,
    HAS_BIAS: tl.constexpr,
    DIM: tl.constexpr,
    POSITIONS: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    LOG_1: tl.constexpr,
    LOG_2: tl.constexpr,
    EPS: tl.constexpr,
    SPARSE_EPS: tl.constexpr,
    RATE_1: tl.constexpr,
    RATE_2: tl.constexpr,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, DIM)
    learns = (row > 0) & (row < num_rows)  # row 0 is padding
    candidate = learns & (row < stop)
    at = row[:, None].to(tl.int64) * DIM + column[None, :]
    block = tl.load(rows + at, mask=learns[:, None], other=0.0)
    offset = tl.zeros([ROWS], tl.float32)
    if HAS_BIAS:
        offset = tl.load(bias + row, mask=learns, other=0.0)
    grad = tl.zeros([ROWS, DIM], tl.float32)
    bias_grad = tl.zeros([ROWS], tl.float32)
    for start in range(0, count, POSITIONS):
        place = start + tl.arange(0, POSITIONS)
        real = place < count
        states = tl.load(
            hidden + place[:, None] * DIM + column[None, :], mask=real[:, None], other=0.0
        )
        normalizer = tl.load(normalizers + place, mask=real, other=float("inf"))
        target = tl.load(targets + place, mask=real, other=0)
        logits = tl.dot(block, tl.trans(states), input_precision=PRECISION) + offset[:, None]
        error = tl.where(candidate[:, None], tl.exp(logits - normalizer[None, :]), 0.0)
        error -= tl.where(row[:, None] == target[None, :], 1.0, 0.0)  # of row 0: it never learns
        grad = tl.dot(error, states, grad, input_precision=PRECISION)
        bias_grad += tl.sum(error, 1)
    factor = tl.load(scale)
    size, eps, lr = _numbers(steps, lrs, LOG_1, LOG_2, EPS, SPARSE_EPS)
    first = tl.load(firsts + at, mask=learns[:, None], other=0.0)
    second = tl.load(seconds + at, mask=learns[:, None], other=0.0)
    block, first, second = _adam(
        block, first, second, grad * factor, size, eps, lr, RATE_1, RATE_2, DECAY, DECOUPLED
    )
    tl.store(rows + at, block, mask=learns[:, None])
    tl.store(firsts + at, first, mask=learns[:, None])
    tl.store(seconds + at, second, mask=learns[:, None])
    if HAS_BIAS:
        first = tl.load(bias_firsts + row, mask=learns, other=0.0)
        second = tl.load(bias_seconds + row, mask=learns, other=0.0)
        offset, first, second = _adam(
            offset, first, second, bias_grad * factor, size, eps, lr, RATE_1, RATE_2, DECAY,
            DECOUPLED,
        )  # fmt: skip
        tl.store(bias + row, offset, mask=learns)
        tl.store(bias_firsts + row, first, mask=learns)
        tl.store(bias_seconds + row, second, mask=learns)


@triton.jit
def _step_rows(
    ids,
    slots,
    sums,
    rows,
    firsts,
    seconds,
    steps,
    lrs,
    padding,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    LOG_1: tl.constexpr,
    LOG_2: tl.constexpr,
    EPS: tl.constexpr,
    SPARSE_EPS: tl.constexpr,
    RATE_1: tl.constexpr,
    RATE_2: tl.constexpr,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
):
    place = tl.program_id(0)
    row = tl.load(ids + place)
    if (tl.load(slots + place) == place) & (row != padding):
        column = tl.arange(0, WIDTH)
        inside = column < DIM
        at = row * DIM + column
        grad = tl.load(sums + place * DIM + column, mask=inside, other=0.0)
        value = tl.load(rows + at, mask=inside, other=0.0)
        first = tl.load(firsts + at, mask=inside, other=0.0)
        second = tl.load(seconds + at, mask=inside, other=0.0)
        size, eps, lr = _numbers(steps, lrs, LOG_1, LOG_2, EPS, SPARSE_EPS)
        value, first, second = _adam(
            value, first, second, grad, size, eps, lr, RATE_1, RATE_2, DECAY, DECOUPLED
        )
        tl.store(rows + at, value, mask=inside)
        tl.store(firsts + at, first, mask=inside)
        tl.store(seconds + at, second, mask=inside)


def pool_shape(count: int, dim: int) -> dict[str, int]:
    """Tiles of the forward kernel, and how it is launched."""
    if dim > 128:
        return {"POSITIONS": 32, "ROWS": 32, "num_warps": 4, "num_stages": 2}
    positions = 32 if count <= 32 else 64
    return {"POSITIONS": positions, "ROWS": 64, "num_warps": 4, "num_stages": 2}


def update_shape(count: int, dim: int) -> dict[str, int]:
    """Tiles of the update kernel, and how it is launched."""
    rows = 32 if dim > 128 else 64
    return {"POSITIONS": 32, "ROWS": rows, "num_warps": 4, "num_stages": 2}


def precision_now() -> str:
    """As torch's own matrix products are: full, or of 10 bits."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def pool(
    hidden: Tensor,
    rows: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    stop: int,
    precision: str | None = None,
    shape: dict[str, int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [n], normalisers [n] and gradients [n, d] of states [n, d]; target 0 does not count.

    Candidates are the rows 1 .. stop - 1 of rows [k, d], with bias [k].
    """
    count, dim = hidden.shape
    losses, normalizers = hidden.new_empty(2, count).unbind()
    grads = torch.empty_like(hidden)
    if count == 0:
        return losses, normalizers, grads
    shape = shape or pool_shape(count, dim)
    tiles = triton.cdiv(count, shape["POSITIONS"])
    share = triton.cdiv(triton.cdiv(stop, triton.cdiv(PROGRAMS, tiles)), shape["ROWS"])
    share *= shape["ROWS"]
    splits = triton.cdiv(stop, share)
    tops, sums = hidden.new_empty(2, splits, count).unbind()
    pools = hidden.new_empty(splits, count, dim)
    some_bias = rows if bias is None else bias  # never read without one
    _pool[(tiles, splits)](
        hidden, rows, some_bias, tops, sums, pools, count, stop, share,
        HAS_BIAS=bias is not None, DIM=dim, PRECISION=precision or precision_now(), **shape,
    )  # fmt: skip
    _combine[(count,)](
        hidden, rows, some_bias, targets, tops, sums, pools, losses, normalizers, grads, count,
        splits, HAS_BIAS=bias is not None, DIM=dim, SPLITS=triton.next_power_of_2(splits),
        CHUNK=16, num_warps=4,
    )  # fmt: skip
    return losses, normalizers, grads


def update(
    hidden: Tensor,
    targets: Tensor,
    normalizers: Tensor,
    scale: Tensor,
    rows: tuple[Tensor, Tensor, Tensor],
    bias: tuple[Tensor, Tensor, Tensor] | None,
    steps: Tensor,
    lr: Tensor,
    stop: int,
    optimizer: RowOptimizer,
    precision: str | None = None,
    shape: dict[str, int] | None = None,
) -> None:
    """A step of Adam of every row by the gradient of scale × the summed losses of `pool`.

    rows and bias: values, first and second moments; steps, lr: one number each, on the device.
    """
    count, dim = hidden.shape
    num_rows = len(rows[0])
    shape = shape or update_shape(count, dim)
    _update[(triton.cdiv(num_rows, shape["ROWS"]),)](
        hidden, targets, normalizers, scale, *rows, *(rows if bias is None else bias), steps, lr,
        count, num_rows, stop, HAS_BIAS=bias is not None, DIM=dim, PRECISION=precision or precision_now(),
        **_constants(optimizer), **shape,
    )  # fmt: skip


def step_rows(
    ids: Tensor,
    slots: Tensor,
    sums: Tensor,
    rows: tuple[Tensor, Tensor, Tensor],
    steps: Tensor,
    lr: Tensor,
    padding: int | None,
    optimizer: RowOptimizer,
) -> None:
    """A step of Adam of the rows of `ids` [n], by sums [n, dim] at those places that are slots.

    slots [n] names for each id one of its places: the same for all that are equal.
    """
    dim = sums.shape[1]
    if len(ids):
        _step_rows[(len(ids),)](
            ids, slots, sums, *rows, steps, lr, -1 if padding is None else padding, DIM=dim,
            WIDTH=triton.next_power_of_2(dim), num_warps=1, **_constants(optimizer),
        )  # fmt: skip


def _constants(optimizer: RowOptimizer) -> dict[str, float | bool]:
    beta_1, beta_2 = optimizer.betas
    return {
        "LOG_1": math.log(beta_1) if beta_1 else -1e9,
        "LOG_2": math.log(beta_2) if beta_2 else -1e9,
        "RATE_1": 1.0 - beta_1,
        "RATE_2": 1.0 - beta_2,
        "EPS": optimizer.eps or 0.0,
        "SPARSE_EPS": optimizer.sparse_eps,
        "DECAY": optimizer.weight_decay or 0.0,
        "DECOUPLED": optimizer.name == "adamw",
    }
