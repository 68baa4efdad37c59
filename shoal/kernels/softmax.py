"""Steps of a softmax over a catalogue: by the native core where it is faster than torch, by Triton.

Which those are was measured by instruction set (benchmarks/softmax_cpu.py, benchmarks/RESULTS.md).
Without kernels all are plain torch (embedding/softmax/full.py); results agree to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.kernels.core import load_core
from shoal.kernels.machine import has_triton, is_plain, is_wide

_core = load_core()
STEPS = ("sgd", "adagrad", "adam", "adamw")  # optimizers that `step_catalogue` knows
MOST = 1 << 16  # floats of states that the one pass holds in the second cache, and as many sums
HELD = 1 << 25  # exponentials that it may hold from forward to the step: 128 MiB


def worth_it(positions: int, dim: int, rows: int) -> bool:
    """Whether one pass of the core over all rows (`Exponentials`) beats torch's products.

    It saves writing and reading the gradient of the table, which costs the same whatever the number
    of positions; its products are as fast as torch's while states and sums of all positions stay in
    the second cache. Threads share the rows, and change nothing in that.
    """
    return is_wide() and in_one_pass(positions, dim, rows)


def in_one_pass(positions: int, dim: int, rows: int) -> bool:
    """Whether so many positions are few enough for it; the same on every machine."""
    return positions * dim <= MOST and positions * rows <= HELD


def exponentials_(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [n, k] = exp(x - highest of its row), in place: the highest [n] and the sums [n]."""
    # Two passes over memory instead of torch's four: 1.3 to 2 times as fast on x86, 1.7 on ARM.
    if is_wide() and torch.get_num_threads() == 1 and is_plain(x):
        highest, totals = torch.empty(2, len(x)).unbind()
        _core.exponentials(x.data_ptr(), *x.shape, highest.data_ptr(), totals.data_ptr(), 1)
        return highest, totals
    highest = x.amax(1)
    x.sub_(highest.unsqueeze(1)).exp_()
    return highest, x.sum(1)


@dataclass(frozen=True)
class Exponentials:
    """Exponentials of all logits of n states, as the core keeps them from forward to the step."""

    values: Tensor  # [k, width], width: n, filled up to whole vectors
    tops: Tensor  # [blocks, width]: what those of 64 rows are relative to
    highest: Tensor  # [n]: the highest logit of each state
    totals: Tensor  # [n]: sums of exponentials relative to it
    pooled: Tensor  # [n, d]: sums of exponential * row


def room_for(n: int, k: int) -> int:
    """Floats that exponentials of n states and k rows take."""
    return k * _core.catalogue_sizes(n, k)[0]


def catalogue_exponentials(
    states: Tensor, rows: Tensor, bias: Tensor | None, others: Tensor, memory: Tensor
) -> Exponentials:
    """states [n, d], rows [k, d], bias [k] or [k, 1]; others [m], ascending: no candidates.

    memory: `room_for` floats, which are written.
    """
    (n, dim), k = states.shape, len(rows)
    width, blocks = _core.catalogue_sizes(n, k)
    highest, totals = torch.empty(2, n).unbind()
    exponentials = Exponentials(
        memory.view(k, width), torch.empty(blocks, width), highest, totals, torch.empty(n, dim)
    )
    _core.catalogue_exponentials(
        states.data_ptr(),
        n,
        dim,
        rows.data_ptr(),
        k,
        0 if bias is None else bias.data_ptr(),
        others.data_ptr(),
        len(others),
        [exponentials.values.data_ptr(), exponentials.tops.data_ptr()],
        [highest.data_ptr(), totals.data_ptr(), exponentials.pooled.data_ptr()],
        torch.get_num_threads(),
    )
    return exponentials


def step_catalogue(
    states: Tensor,
    exponentials: Exponentials,
    shares: Tensor,
    places: Tensor,
    truth: float,
    optimizer: str,
    numbers: Sequence[float],
    rows: Sequence[Tensor],
    bias: Sequence[Tensor] = (),
) -> None:
    """One step of rows and bias (values and state of each) by the softmax's gradients.

    shares [n]: what a state's exponentials count; places [n]: of its target, -1: elsewhere; truth:
    what that counts. numbers: step size, eps, 1 - beta1, 1 - beta2, weight decay, what is kept.
    """
    _core.catalogue_step(
        states.data_ptr(),
        *states.shape,
        len(rows[0]),
        [exponentials.values.data_ptr(), exponentials.tops.data_ptr()],
        exponentials.highest.data_ptr(),
        shares.data_ptr(),
        places.data_ptr(),
        truth,
        _core.OPTIMIZERS[optimizer],
        list(numbers),
        _addresses(rows),
        _addresses(bias),
        torch.get_num_threads(),
    )


def _addresses(pieces: Sequence[Tensor]) -> list[int]:
    """Addresses of values and up to two pieces of state; 0: there is none."""
    return [piece.data_ptr() for piece in pieces] + [0] * (3 - len(pieces))


def gpu_kernels(dim: int) -> Any:
    """Triton's kernels for rows of so many values (kernels/gpu/softmax.py); None: there are none.

    They make no logits: `pool`, `row_gradients`, `update`.
    """
    if not has_triton():
        return None
    from shoal.kernels.gpu import softmax

    return softmax if dim in (16, 32, 64, 128, 256) else None  # that they are written for
