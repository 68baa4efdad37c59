"""Distinct ids, and the sums of their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.kernels.codes import add_rows, distinct_below

DENSE_FACTOR = 64  # one slot per code when there are at most 64 codes per id given


def sum_duplicates(ids: Tensor, grads: Tensor, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Unique ids in ascending order [u] and the sums of their gradients [u, dim].

    limit: ids are below it, where that is known; they need no sorting then. The order of summation
    is the order of occurrence, so the result is deterministic.
    """
    unique, inverse = find_duplicates(ids, limit)
    if unique.numel() == 0:
        return unique, grads
    return unique, add_rows(None, inverse, grads, len(unique))


def find_duplicates(ids: Tensor, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Unique ids in ascending order [u], and the place of each one given [n]."""
    if limit is None:
        unique, inverse = torch.unique(ids, return_inverse=True)
        return unique, inverse
    return distinct(ids, limit)


def distinct(codes: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Distinct codes of 0..limit-1 ascending [u], and the place of each one given [n]."""
    if limit > DENSE_FACTOR * len(codes):
        unique, inverse = torch.unique(codes, return_inverse=True)
        return unique, inverse
    return distinct_below(codes, limit)
