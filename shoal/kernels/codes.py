"""Codes of ids, distinct ones, and sums of rows at their places: the core on a CPU, else torch."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.kernels.core import load_core

_core = load_core()


def codes_of(ids: Tensor, rows: int, padding: int | None, factor: int) -> tuple[Tensor | None, int]:
    """ids [n] -> ids * factor % rows [n], the padding id `rows`; and the place of an id outside,
    -1: there is none. None: there is no kernel for these."""
    if _core is None or not ids.is_cpu:
        return None, -1
    ids = ids.contiguous()
    out = torch.empty_like(ids)
    pad = -1 if padding is None else padding
    return out, _core.codes_of(ids.data_ptr(), ids.numel(), rows, pad, factor, out.data_ptr())


def distinct(codes: Tensor, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Distinct codes ascending [u], and the place of each one given [n]; limit: all are below it.

    Where codes are many for their limit they need no sorting: there is a slot for every code.
    """
    if limit is None or limit > 64 * len(codes):
        unique, inverse = torch.unique(codes, return_inverse=True)
        return unique, inverse
    if _core is not None and codes.is_cpu:
        codes = _whole(codes)
        unique, inverse = torch.empty_like(codes), torch.empty_like(codes)
        found = _core.distinct_codes(
            codes.data_ptr(), len(codes), limit, unique.data_ptr(), inverse.data_ptr()
        )
        return unique[:found], inverse
    place = code_map(codes, limit)
    unique = (place == 0).nonzero().squeeze(1)
    place[unique] = torch.arange(len(unique), device=codes.device)
    return unique, place[codes]


def code_map(codes: Tensor, limit: int, places: Tensor | int = 0) -> Tensor:
    """A map [limit] from codes to their places; -1 where a code is not given."""
    found = codes.new_full((limit,), -1)
    found[codes] = places
    return found


def _whole(numbers: Tensor) -> Tensor:
    """Numbers [n] as the core reads them."""
    if numbers.dtype != torch.int64 or numbers.dim() != 1:
        raise ValueError(f"given {numbers.dtype} {list(numbers.shape)}; codes are int64 [n]")
    return numbers.contiguous()


def add_rows(
    total: Tensor | None, places: Tensor, grads: Tensor, num_rows: int, begun: bool = True
) -> Tensor:
    """total [num_rows, dim] (None: zeros) plus grads [n, dim] at their places [n].

    begun: whether what `total` holds counts; it is written over where it does not.
    """
    if _core is not None and grads.device.type == "cpu" and grads.dtype == torch.float32:
        begun = begun and total is not None
        if total is None:
            total = torch.empty(num_rows, grads.shape[1])
        grads, places = grads.contiguous(), _whole(places)
        if total.shape != (num_rows, grads.shape[1]) or len(grads) != len(places):
            raise ValueError(
                f"sums {list(total.shape)} of {num_rows} rows, gradients {list(grads.shape)} and "
                f"{len(places)} places do not fit"
            )
        total = total.contiguous()
        _core.add_rows(
            total.data_ptr(),
            num_rows,
            grads.shape[1],
            places.data_ptr(),
            grads.data_ptr(),
            len(places),
            begun,
            torch.get_num_threads(),
        )
        return total
    if total is not None and not begun:
        total.zero_()
    if len(places) == 0:
        return grads.new_zeros(num_rows, grads.shape[1]) if total is None else total
    summed = torch.ops.aten.embedding_dense_backward(grads, places, num_rows, -1, False)
    return summed if total is None else total.add_(summed)


def sum_duplicates(ids: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Unique ids in ascending order [u] and the sums of their gradients [u, dim].

    Gradients are added in the order of occurrence, so the result is deterministic.
    """
    unique, inverse = distinct(ids)
    return unique, add_rows(None, inverse, grads, len(unique))
