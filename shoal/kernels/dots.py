"""Dot products of all pairs of a sample's vectors, beside the first: one kernel on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.kernels.machine import runs_triton


def takes_dots(vectors: Tensor) -> bool:
    """Whether there is a kernel for vectors [b, n, d] on a GPU."""
    return vectors.dtype == torch.float32 and runs_triton()


def dots_beside(first: Tensor, vectors: Tensor) -> Tensor:
    """[first, dots of first and all vectors, zeros], where `takes_dots`: [b, d], [b, n - 1, d].

    As wide as the next multiple of 8; what torch.cat and torch.bmm make (models/nn/interactions.py)
    is the plain form.
    """
    from shoal.kernels.gpu.dots import DotsOf

    return DotsOf.apply(first, vectors, torch.is_autocast_enabled("cuda"))
