"""Summing the gradients of repeated ids."""

from __future__ import annotations

import torch
from torch import Tensor


def sum_duplicates(ids: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Unique ids in ascending order [u] and the sums of their gradients [u, dim].

    The order of summation is the order of occurrence, so the result is deterministic.
    """
    unique, inverse = torch.unique(ids, return_inverse=True)
    if unique.numel() == 0:
        return unique, grads
    summed = torch.ops.aten.embedding_dense_backward(grads, inverse, unique.numel(), -1, False)
    return unique, summed
