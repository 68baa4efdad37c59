"""Codes of ids, distinct ones, and sums of rows at their places: the core on a CPU, else torch."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.kernels.bags import sum_bags
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
        num_unique = _core.distinct_codes(
            codes.data_ptr(), len(codes), limit, unique.data_ptr(), inverse.data_ptr()
        )
        return unique[:num_unique], inverse
    place = code_map(codes, limit)
    unique = (place == 0).nonzero().squeeze(1)
    place[unique] = torch.arange(len(unique), device=codes.device)
    return unique, place[codes]


def code_map(codes: Tensor, limit: int, places: Tensor | int = 0) -> Tensor:
    """A map [limit] from codes to their places; -1 where a code is not given."""
    mapping = codes.new_full((limit,), -1)
    mapping[codes] = places
    return mapping


def group_by(owners: Tensor, size: int) -> Tensor:
    """Where numbers below `size` stand among `owners` [n]: those of 0, of 1, ..., each in order."""
    if owners.is_cuda or size > 32:
        order = owners.argsort(stable=True)
        return order[: int((owners < size).sum())]
    return torch.cat([(owners == one).nonzero().squeeze(1) for one in range(size)])


def _whole(numbers: Tensor) -> Tensor:
    """Numbers [n] as the core reads them."""
    if numbers.dtype != torch.int64 or numbers.dim() != 1:
        raise ValueError(f"given {numbers.dtype} {list(numbers.shape)}; codes are int64 [n]")
    return numbers.contiguous()


def add_rows(
    total: Tensor | None,
    places: Tensor,
    grads: Tensor,
    num_rows: int,
    begun: bool = True,
    offsets: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """total [num_rows, dim] (None: zeros) plus grads [n, dim] at their places [n].

    begun: whether what `total` holds counts; it is written over where it does not. offsets
    [bags + 1]: grads [bags, dim] are those of bags of places, each times its weight [n].
    """
    if _core is not None and grads.device.type == "cpu" and grads.dtype == torch.float32:
        begun = begun and total is not None
        if total is None:
            total = torch.empty(num_rows, grads.shape[1])
        grads, places = grads.contiguous(), _whole(places)
        offsets = None if offsets is None else _whole(offsets)
        weights = None if weights is None else weights.contiguous()
        num_gradients = len(places) if offsets is None else len(offsets) - 1
        if total.shape != (num_rows, grads.shape[1]) or len(grads) != num_gradients:
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
            0 if offsets is None else offsets.data_ptr(),
            len(grads),
            0 if weights is None else weights.data_ptr(),
            torch.get_num_threads(),
        )
        return total
    if total is not None and not begun:
        total.zero_()
    if len(places) == 0:
        return grads.new_zeros(num_rows, grads.shape[1]) if total is None else total
    if offsets is None:
        summed = torch.ops.aten.embedding_dense_backward(grads, places, num_rows, -1, False)
    else:
        summed = _sum_places(places, grads, num_rows, offsets, weights)
    return summed if total is None else total.add_(summed)


def _sum_places(
    places: Tensor, grads: Tensor, num_rows: int, offsets: Tensor, weights: Tensor | None
) -> Tensor:
    """Sums [num_rows, dim] of the gradients of bags at their places, in order of arrival."""
    numbers = torch.arange(len(grads), device=places.device)
    bag_of = numbers.repeat_interleave(offsets.diff(), output_size=len(places))
    sorted_places, order = places.sort(stable=True)
    starts = torch.searchsorted(sorted_places, torch.arange(num_rows + 1, device=places.device))
    return sum_bags(grads, starts, bag_of[order], None if weights is None else weights[order])
