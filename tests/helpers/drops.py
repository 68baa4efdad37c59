"""Masks of dropout by the core, and how far they are from independent draws."""

import pytest
import torch
from torch import Tensor

from shoal.kernels.core import load_core

core = load_core()
# Without a compiler there is no core: masks are then made by torch, which test_dropout.py tests.
needs_core = pytest.mark.skipif(core is None, reason="the native core was not built")
MANY = 1 << 20


def by_core(n: int, key: int, p: float, threads: int = 1) -> Tensor:
    """The core's mask, float32 [n]."""
    out = torch.full((n + 1,), 9.0)
    core.dropout_mask(key, p, 0, n, out.data_ptr(), threads)
    assert out[n] == 9
    return out[:n]


def drops(key: int, p: float, n: int = MANY) -> Tensor:
    """1 where a value is dropped, less p, over the standard deviation: [n], by the core."""
    gone = (by_core(n, key, p) == 0).double()
    return (gone - p) / (p * (1 - p)) ** 0.5


def score(products: Tensor) -> float:
    """Standard deviations by which a mean of products of drops is off 0."""
    return abs(float(products.sum())) / products.numel() ** 0.5
