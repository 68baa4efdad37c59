"""Is there a kernel: for these tensors, on this machine?

Which instruction sets are worth it was measured (benchmarks/softmax_cpu.py, benchmarks/RESULTS.md).
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from shoal.kernels.core import load_core

_core = load_core()
WIDE = ("neon", "avx2", "avx512")  # SSE2, of x86 before 2013, was slower than torch in everything


def is_wide() -> bool:
    """Whether the core has vectors that keep up with torch's here."""
    return _core is not None and _core.instruction_set() in WIDE


def has_neon() -> bool:
    """Whether the core is there and this is ARM."""
    return _core is not None and _core.instruction_set() == "neon"


def on_arm(*tensors: Tensor) -> bool:
    """Whether the core's passes over memory can take these and are worth it."""
    return has_neon() and all(is_plain(x) for x in tensors)


def fits(*tensors: Tensor) -> bool:
    """Whether the core's small products can take these and are worth it.

    On ARM, on one thread: torch takes three to six times as long for many small ones. On x86 its
    products are as fast or faster.
    """
    return torch.get_num_threads() == 1 and on_arm(*tensors)


def is_plain(x: Tensor) -> bool:
    """Whether the core can read a tensor: float32, contiguous, on the CPU."""
    return x.is_cpu and x.dtype == torch.float32 and x.is_contiguous()


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def runs_triton() -> bool:
    """Whether Triton's kernels can be launched on a GPU: not while torch compiles."""
    return has_triton() and not torch.compiler.is_compiling()
