"""Steps of a softmax over a catalogue by the native core, where it is faster than torch.

Which those are was measured by instruction set (benchmarks/softmax_cpu.py, benchmarks/RESULTS.md).
Without the core all are plain torch; results agree to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.world.core import load_core

_core = load_core()
HAS_SOFTMAX = hasattr(_core, "use_instruction_set")
WIDE = ("neon", "avx2", "avx512")  # SSE2, of x86 before 2013, was slower than torch in everything
MOST = 1 << 16  # floats of states that the one pass holds in the second cache, and as many sums
HELD = 1 << 25  # exponentials that it may hold from forward to the step: 128 MiB


def worth_it(positions: int, dim: int, rows: int) -> bool:
    """Whether one pass of the core over all rows (fused_cpu.py) beats torch's products.

    It saves writing and reading the gradient of the table, which costs the same whatever the number
    of positions; its products are as fast as torch's while states and sums of all positions stay in
    the second cache. Threads share the rows, and change nothing in that.
    """
    return is_wide() and in_one_pass(positions, dim, rows)


def in_one_pass(positions: int, dim: int, rows: int) -> bool:
    """Whether so many positions are few enough for it; the same on every machine."""
    return positions * dim <= MOST and positions * rows <= HELD


def is_wide() -> bool:
    """Whether the core has vectors that keep up with torch's here."""
    return HAS_SOFTMAX and _core.instruction_set() in WIDE


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


def fits(*tensors: Tensor) -> bool:
    """Whether the core's small products can take these and are worth it.

    On ARM, on one thread: torch takes three to six times as long for many small ones. On x86 its
    products are as fast or faster.
    """
    if not HAS_SOFTMAX or _core.instruction_set() != "neon" or torch.get_num_threads() > 1:
        return False
    return all(is_plain(x) for x in tensors)


def on_arm(*tensors: Tensor) -> bool:
    """Whether the core's passes over memory can take these and are worth it."""
    return has_neon() and all(is_plain(x) for x in tensors)


def has_neon() -> bool:
    """Whether the core is there and this is ARM."""
    return HAS_SOFTMAX and _core.instruction_set() == "neon"


def is_plain(x: Tensor) -> bool:
    return x.is_cpu and x.dtype == torch.float32 and x.is_contiguous()
