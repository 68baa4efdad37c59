"""Many small products of matrices (attention), for which torch makes one call each."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.kernels.core import load_core
from shoal.kernels.machine import fits

_core = load_core()


def products_of(a: Tensor, b: Tensor) -> Tensor:
    """a [..., m, k] @ b [..., k, n] of as many small matrices each: [..., m, n], contiguous."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if b.shape[-2] != k:
        raise ValueError(f"a {list(a.shape)} and b {list(b.shape)} cannot be multiplied")
    small = m * k * n <= 1 << 16  # beyond that torch's calls cost nothing any more
    if a.shape[:-2] == b.shape[:-2] and small and fits(a := a.contiguous(), b):
        out = torch.empty(*a.shape[:-1], n)
        count = a.shape[:-2].numel()
        _core.products(a.data_ptr(), b.data_ptr(), out.data_ptr(), count, m, k, n)
        return out
    return a @ b
