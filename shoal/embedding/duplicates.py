"""Distinct ids, and the sums of their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

DENSE_FACTOR = 16  # one slot per code when there are at most 16 codes per id given


def sum_duplicates(ids: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Unique ids in ascending order [u] and the sums of their gradients [u, dim].

    The order of summation is the order of occurrence, so the result is deterministic.
    """
    unique, inverse = torch.unique(ids, return_inverse=True)
    if unique.numel() == 0:
        return unique, grads
    return unique, add_rows(None, inverse, grads, len(unique))


def distinct(codes: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Distinct codes of 0..limit-1 ascending [u], the place of each one given [n], and a map.

    The map [limit] says where each code stands, -1 where it does not; None for sparse codes.
    """
    if limit > DENSE_FACTOR * len(codes):
        unique, inverse = torch.unique(codes, return_inverse=True)
        return unique, inverse, None
    place = codes.new_full((limit,), -1)
    place[codes] = 0
    unique = (place == 0).nonzero().squeeze(1)
    place[unique] = torch.arange(len(unique), device=codes.device)
    return unique, place[codes], place


def add_rows(total: Tensor | None, places: Tensor, grads: Tensor, num_rows: int) -> Tensor:
    """total [num_rows, dim] (None: zeros) plus grads [n, dim] at their places [n]."""
    if len(places) == 0:
        return grads.new_zeros(num_rows, grads.shape[1]) if total is None else total
    summed = torch.ops.aten.embedding_dense_backward(grads, places, num_rows, -1, False)
    return summed if total is None else total.add_(summed)
