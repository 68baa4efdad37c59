"""Triton kernels of a softmax over all rows of a table that learn by Adam.

    pool        forward: logits of a slice of the rows, their sum of exponentials and the mean row
                under the softmax, kept as an online maximum; each program takes one slice
    combine     the slices of a position become its loss and the gradient of its state
    update      logits again, now with their normaliser: gradients of a block of rows, and Adam on
                it before it leaves the chip
    row_gradients   the same gradients, written: where others are added to them before a step

Logits are never written. Products are of float32, by three of float16 (products.py), for
which states and rows are multiplied by SIZE, and probabilities by MOST: no value of a state or a
row may reach 4,094 (it becomes infinite, and the loss is no number).
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.common.rules import RowRule
from shoal.kernels.gpu.products import dot_halves, dot_parts, halves_of

LOWEST = tl.constexpr(-1e30)  # below any logit, and finite: differences of it are numbers
SIZE = tl.constexpr(16.0)  # of states and rows: their parts are not too small for float16
MOST = tl.constexpr(32768.0)  # of probabilities: the largest that float16 holds
FINER = tl.constexpr(2048.0)  # of what a float16 leaves of a number
AT_ONCE = 264  # programs: two for each multiprocessor of a large GPU
SMALL_AT_ONCE = 396  # of those that write gradients: three for each
POOL_COST, GRADIENT_COST = 4, 64  # of a part more: as so many rows, or positions
FEW = 64  # positions; a step of all rows is bound by memory then, else by products


# fmt: off
@triton.jit
def _adam(value, first, second, grad, numbers, RATE_1: tl.constexpr, RATE_2: tl.constexpr,
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
def _load_states(parts, place, column, count, DIM: tl.constexpr):
    """Two parts of states [POSITIONS, DIM], as _split_states wrote them."""
    at = place[:, None] * DIM + column[None, :]
    real = (place < count)[:, None]
    high = tl.load(parts + at, mask=real, other=0.0)
    return high, tl.load(parts + count * DIM + at, mask=real, other=0.0)


@triton.jit
def _split_states(hidden, parts, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    high, low = halves_of(tl.load(hidden + at, mask=inside, other=0.0) * SIZE)
    tl.store(parts + at, high, mask=inside)
    tl.store(parts + size + at, low, mask=inside)
    tl.store(parts + 2 * size + at, (high.to(tl.float32) / FINER).to(tl.float16), mask=inside)


@triton.jit
def _pool(parts, rows, bias, tops, sums, pools, count, stop, share, HAS_BIAS: tl.constexpr,
          DIM: tl.constexpr, POSITIONS: tl.constexpr, ROWS: tl.constexpr):
    place = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    split = tl.program_id(1)
    column = tl.arange(0, DIM)
    s_high, s_low = _load_states(parts, place, column, count, DIM)
    top = tl.full([POSITIONS], LOWEST, tl.float32)
    total = tl.zeros([POSITIONS], tl.float32)
    pooled = tl.zeros([POSITIONS, DIM], tl.float32)
    end = tl.minimum(split * share + share, stop)
    for start in range(split * share, end, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row > 0) & (row < end)
        at = row[:, None].to(tl.int64) * DIM + column[None, :]
        high, low = halves_of(tl.load(rows + at, mask=inside[:, None], other=0.0) * SIZE)
        logits = dot_halves(s_high, s_low, tl.trans(high), tl.trans(low),
                            tl.zeros([POSITIONS, ROWS], tl.float32)) / (SIZE * SIZE)
        if HAS_BIAS:
            logits += tl.load(bias + row, mask=inside, other=0.0)[None, :]
        logits = tl.where(inside[None, :], logits, float("-inf"))
        higher = tl.maximum(top, tl.max(logits, 1))
        shrink = tl.exp(top - higher)
        weight = tl.exp(logits - higher[:, None])
        total = total * shrink + tl.sum(weight, 1)
        w_high, w_low = halves_of(weight * MOST)
        pooled = dot_halves(w_high, w_low, high, low, pooled * shrink[:, None])
        top = higher
    pooled /= MOST * SIZE
    at = split * count + place
    real = place < count
    tl.store(tops + at, top, mask=real)
    tl.store(sums + at, total, mask=real)
    tl.store(pools + at[:, None].to(tl.int64) * DIM + column[None, :], pooled, mask=real[:, None])


@triton.jit
def _combine(hidden, rows, bias, targets, tops, sums, pools, losses, normalizers, grads, count,
             splits, HAS_BIAS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
             CHUNK: tl.constexpr):
    place = tl.program_id(0)
    column = tl.arange(0, DIM)
    every = tl.arange(0, SPLITS)
    top = tl.max(tl.load(tops + every * count + place, mask=every < splits, other=LOWEST), 0)
    total = 0.0
    pooled = tl.zeros([DIM], tl.float32)
    for start in range(0, splits, CHUNK):
        split = start + tl.arange(0, CHUNK)
        is_split = split < splits
        at = split * count + place
        weight = tl.exp(tl.load(tops + at, mask=is_split, other=LOWEST) - top)
        total += tl.sum(weight * tl.load(sums + at, mask=is_split, other=0.0), 0)
        at = at[:, None].to(tl.int64) * DIM + column[None, :]
        pool = tl.load(pools + at, mask=is_split[:, None], other=0.0)
        pooled += tl.sum(weight[:, None] * pool, 0)
    target = tl.load(targets + place)
    wanted = tl.load(rows + target * DIM + column)
    logit = tl.sum(tl.load(hidden + place * DIM + column) * wanted, 0)
    if HAS_BIAS:
        logit += tl.load(bias + target)
    normalizer = top + tl.log(total)
    real = target > 0
    tl.store(losses + place, tl.where(real, normalizer - logit, 0.0))
    # Infinite: every probability of a position that does not count becomes 0.
    tl.store(normalizers + place, tl.where(real, normalizer, float("inf")))
    tl.store(grads + place * DIM + column, tl.where(real, pooled / total - wanted, 0.0))


@triton.jit
def _errors(block, offset, row, candidate, parts, targets, normalizers, column, begin, end, count,
            DIM: tl.constexpr, POSITIONS: tl.constexpr, ROWS: tl.constexpr):
    """Gradients of a block of rows [ROWS, DIM] and of its bias, by positions begin to end."""
    b_high, b_low = halves_of(block * SIZE)
    grad = tl.zeros([ROWS, DIM], tl.float32)
    bias_grad = tl.zeros([ROWS], tl.float32)
    for start in range(begin, end, POSITIONS):
        place = start + tl.arange(0, POSITIONS)
        high, low = _load_states(parts, place, column, count, DIM)
        normalizer = tl.load(normalizers + place, mask=place < count, other=float("inf"))
        target = tl.load(targets + place, mask=place < count, other=0)
        logits = dot_halves(b_high, b_low, tl.trans(high), tl.trans(low),
                            tl.zeros([ROWS, POSITIONS], tl.float32)) / (SIZE * SIZE)
        logits += offset[:, None]
        error = tl.where(candidate[:, None], tl.exp(logits - normalizer[None, :]), 0.0)
        error -= tl.where(row[:, None] == target[None, :], 1.0, 0.0)  # of row 0: it never learns
        bias_grad += tl.sum(error, 1)
        error *= MOST
        # Optimizers that divide by a gradient's size take small ones as seriously as large ones:
        # what float16 leaves of an error of 1e-6 must not fall below its smallest number.
        e_high = error.to(tl.float16)
        e_low = ((error - e_high.to(tl.float32)) * FINER).to(tl.float16)
        fine = tl.load(parts + 2 * count * DIM + place[:, None] * DIM + column[None, :],
                       mask=(place < count)[:, None], other=0.0)
        grad = dot_parts(e_low, fine, grad)
        grad = dot_parts(e_high, low, grad)
        grad = dot_parts(e_high, high, grad)
    return grad / (MOST * SIZE), bias_grad


@triton.jit
def _row_gradients(parts, targets, normalizers, rows, bias, grads, bias_grads, count, num_rows,
                   stop, share, HAS_BIAS: tl.constexpr, DIM: tl.constexpr,
                   POSITIONS: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    column = tl.arange(0, DIM)
    inside = row < num_rows
    learns = inside & (row > 0)
    at = row[:, None].to(tl.int64) * DIM + column[None, :]
    block = tl.load(rows + at, mask=inside[:, None], other=0.0)
    offset = tl.zeros([ROWS], tl.float32)
    if HAS_BIAS:
        offset = tl.load(bias + row, mask=inside, other=0.0)
    begin = split * share
    grad, bias_grad = _errors(block, offset, row, learns & (row < stop), parts, targets,
                              normalizers, column, begin, tl.minimum(begin + share, count), count,
                              DIM, POSITIONS, ROWS)
    of = split.to(tl.int64) * num_rows
    tl.store(grads + of * DIM + at, tl.where(learns[:, None], grad, 0.0), mask=inside[:, None])
    if HAS_BIAS:
        tl.store(bias_grads + of + row, tl.where(learns, bias_grad, 0.0), mask=inside)


@triton.jit
def _update(parts, targets, normalizers, scale, rows, firsts, seconds, bias, bias_firsts,
            bias_seconds, numbers, count, num_rows, stop, HAS_BIAS: tl.constexpr,
            DIM: tl.constexpr, POSITIONS: tl.constexpr, ROWS: tl.constexpr, EARLY: tl.constexpr,
            RATE_1: tl.constexpr, RATE_2: tl.constexpr, DECAY: tl.constexpr,
            DECOUPLED: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, DIM)
    learns = (row > 0) & (row < num_rows)  # row 0 is padding
    candidate = learns & (row < stop)
    at = row[:, None].to(tl.int64) * DIM + column[None, :]
    wide = learns[:, None]
    block = tl.load(rows + at, mask=wide, other=0.0)
    if EARLY:  # on their way while products are made; where those take long, room is worth more
        first = tl.load(firsts + at, mask=wide, other=0.0)
        second = tl.load(seconds + at, mask=wide, other=0.0)
    offset = tl.zeros([ROWS], tl.float32)
    if HAS_BIAS:
        offset = tl.load(bias + row, mask=learns, other=0.0)
    grad, bias_grad = _errors(block, offset, row, candidate, parts, targets, normalizers, column,
                              0, count, count, DIM, POSITIONS, ROWS)
    factor = tl.load(scale)
    if not EARLY:
        block = tl.load(rows + at, mask=wide, other=0.0)
        first = tl.load(firsts + at, mask=wide, other=0.0)
        second = tl.load(seconds + at, mask=wide, other=0.0)
    block, first, second = _adam(block, first, second, grad * factor, numbers, RATE_1, RATE_2,
                                 DECAY, DECOUPLED)
    tl.store(rows + at, block, mask=wide)
    tl.store(firsts + at, first, mask=wide)
    tl.store(seconds + at, second, mask=wide)
    if HAS_BIAS:
        b_first = tl.load(bias_firsts + row, mask=learns, other=0.0)
        b_second = tl.load(bias_seconds + row, mask=learns, other=0.0)
        offset, b_first, b_second = _adam(offset, b_first, b_second, bias_grad * factor, numbers,
                                          RATE_1, RATE_2, DECAY, DECOUPLED)
        tl.store(bias + row, offset, mask=learns)
        tl.store(bias_firsts + row, b_first, mask=learns)
        tl.store(bias_seconds + row, b_second, mask=learns)
# fmt: on


def pool_shape(count: int, dim: int) -> dict[str, int]:
    """Tiles of the forward kernel, and how it is launched; measured on an H200."""
    if dim > 128:
        return {"POSITIONS": 64, "ROWS": 32, "num_warps": 4, "num_stages": 3}
    if count <= 32:
        return {"POSITIONS": 32, "ROWS": 64, "num_warps": 4, "num_stages": 3}
    return {"POSITIONS": 128, "ROWS": 64, "num_warps": 8, "num_stages": 3 if dim <= 64 else 2}


def update_shape(count: int, dim: int) -> dict[str, int]:
    """Tiles of the update kernel, and how it is launched."""
    if dim > 128 or count <= FEW:
        return {"POSITIONS": 32, "ROWS": 32, "num_warps": 4, "num_stages": 2}
    return {"POSITIONS": 64, "ROWS": 128, "num_warps": 8, "num_stages": 3}


def gradient_shape(dim: int) -> dict[str, int]:
    """Tiles of the kernel that writes gradients, and how it is launched."""
    if dim > 128:
        return {"POSITIONS": 32, "ROWS": 32, "num_warps": 4, "num_stages": 2}
    if dim > 64:
        return {"POSITIONS": 64, "ROWS": 128, "num_warps": 8, "num_stages": 3}
    return {"POSITIONS": 64, "ROWS": 64, "num_warps": 4, "num_stages": 2}


@functools.lru_cache(1024)
def count_parts(tiles: int, length: int, at_once: int, cost: int) -> int:
    """Into how many parts a length is cut that each of so many tiles goes along.

    Programs come in rounds of at_once, which are the shorter the more parts there are, and the last
    round should not be of few. A part more costs as much as `cost` of the length.
    """

    def estimate(parts: int) -> float:
        return -(-tiles * parts // at_once) / parts + parts * cost / length

    return min(range(1, max(1, length // 256) + 1), key=estimate)  # parts of 256 or more


def pool(
    hidden: Tensor,
    rows: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    stop: int,
    shape: dict[str, int] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Losses [n] and gradients [n, d] of states [n, d]; a position of target 0 does not count.

    Candidates are the rows 1 .. stop - 1 of rows [k, d], with bias [k]. Besides, for `update`: the
    normalisers [n], and the states in parts [3, n, d]: high, low, and high once more, made small.
    """
    count, dim = hidden.shape
    losses, normalizers = hidden.new_empty(2, count).unbind()
    grads = torch.empty_like(hidden)
    parts = torch.empty(3, count, dim, dtype=torch.float16, device=hidden.device)
    if count == 0:
        return losses, grads, normalizers, parts
    shape = shape or pool_shape(count, dim)
    tiles = triton.cdiv(count, shape["POSITIONS"])
    share = triton.cdiv(stop, count_parts(tiles, stop, AT_ONCE, POOL_COST))
    share = triton.cdiv(share, shape["ROWS"]) * shape["ROWS"]
    splits = triton.cdiv(stop, share)
    tops, sums = hidden.new_empty(2, splits, count).unbind()
    pools = hidden.new_empty(splits, count, dim)
    bias_or_rows = rows if bias is None else bias  # never read without one
    constants = {"HAS_BIAS": bias is not None, "DIM": dim}
    _split_states[(triton.cdiv(hidden.numel(), 1024),)](hidden, parts, hidden.numel(), BLOCK=1024)
    launch = {**constants, **shape}
    _pool[(tiles, splits)](
        parts, rows, bias_or_rows, tops, sums, pools, count, stop, share, **launch
    )
    launch = {**constants, "SPLITS": triton.next_power_of_2(splits), "CHUNK": 32}
    _combine[(count,)](
        hidden,
        rows,
        bias_or_rows,
        targets,
        tops,
        sums,
        pools,
        losses,
        normalizers,
        grads,
        count,
        splits,
        **launch,
    )
    return losses, grads, normalizers, parts


def update(
    parts: Tensor,
    targets: Tensor,
    normalizers: Tensor,
    scale: Tensor,
    rows: tuple[Tensor, Tensor, Tensor],
    bias: tuple[Tensor, Tensor, Tensor] | None,
    numbers: Tensor,
    stop: int,
    optimizer: RowRule,
    shape: dict[str, int] | None = None,
) -> None:
    """A step of Adam of every row by the gradient of scale × the summed losses of `pool`.

    rows and bias: values, first and second moments; numbers: step size, eps and learning rate.
    """
    _, count, dim = parts.shape
    num_rows = len(rows[0])
    shape = shape or update_shape(count, dim)
    constants: dict[str, Any] = {"HAS_BIAS": bias is not None, "DIM": dim, "EARLY": count <= FEW}
    constants |= {"DECAY": optimizer.weight_decay, "DECOUPLED": optimizer.decoupled}
    constants |= {"RATE_1": 1.0 - optimizer.betas[0], "RATE_2": 1.0 - optimizer.betas[1]}
    bias_or_rows = rows if bias is None else bias  # never read without one
    _update[(triton.cdiv(num_rows, shape["ROWS"]),)](
        parts,
        targets,
        normalizers,
        scale,
        *rows,
        *bias_or_rows,
        numbers,
        count,
        num_rows,
        stop,
        **constants,
        **shape,
    )


def row_gradients(
    parts: Tensor,
    targets: Tensor,
    normalizers: Tensor,
    rows: Tensor,
    bias: Tensor | None,
    stop: int,
    shape: dict[str, int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of rows [k, d] and bias [k] of the summed losses of `pool`, written down.

    Programs share rows, and positions where there are few rows; their sums are added in order.
    """
    _, count, dim = parts.shape
    num_rows = len(rows)
    shape = shape or gradient_shape(dim)
    blocks = triton.cdiv(num_rows, shape["ROWS"])
    tiles = triton.cdiv(count, shape["POSITIONS"])
    shares = count_parts(blocks, count, SMALL_AT_ONCE, GRADIENT_COST)
    share = triton.cdiv(tiles, shares) * shape["POSITIONS"]
    splits = triton.cdiv(count, share)
    grads = rows.new_empty(splits, num_rows, dim)
    bias_grads = None if bias is None else rows.new_empty(splits, num_rows)
    bias_or_rows = rows if bias is None else bias  # never read without one
    _row_gradients[(blocks, splits)](
        parts,
        targets,
        normalizers,
        rows,
        bias_or_rows,
        grads,
        grads if bias_grads is None else bias_grads,
        count,
        num_rows,
        stop,
        share,
        HAS_BIAS=bias is not None,
        DIM=dim,
        **shape,
    )
    if splits == 1:
        return grads[0], None if bias_grads is None else bias_grads[0]
    return grads.sum(0), None if bias_grads is None else bias_grads.sum(0)
