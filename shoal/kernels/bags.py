"""Sums of the rows of bags: by the native core on ARM, else torch's embedding_bag."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.kernels.core import load_core
from shoal.kernels.machine import on_arm

_core = load_core()


def sum_bags(
    x: Tensor, starts: Tensor, ids: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Sums of weights * x[ids], one from each start to the next: x [n, d] -> [bags, d].

    No ids: rows of x as they lie. The gradient is not kept: who calls it makes it.
    """
    x = x.detach()
    if not (len(x) if ids is None else len(ids)):
        return x.new_zeros(len(starts) - 1, x.shape[1])
    inputs = [x] if weights is None else [x, weights]
    if not on_arm(*inputs) or x.dim() != 2:
        every = torch.arange(len(x), device=x.device) if ids is None else ids
        return F.embedding_bag(
            every, x, starts, mode="sum", per_sample_weights=weights, include_last_offset=True
        )
    places = len(x) if ids is None else len(ids)
    for places_of in [starts] if ids is None else [starts, ids]:
        if places_of.dtype != torch.int64 or places_of.dim() != 1:
            raise ValueError(
                f"bags of {places_of.dtype} {list(places_of.shape)}: starts and ids are int64 [n]"
            )
    starts, ids, weights = starts.contiguous(), _whole(ids), _whole(weights)
    if not len(starts) or (weights is not None and weights.shape != (places,)):
        raise ValueError(f"bags of {places} places have a start, an end and as many weights")
    out = x.new_empty(len(starts) - 1, x.shape[1])
    num_rows, dim = x.shape
    _core.sum_bags(
        x.data_ptr(),
        num_rows,
        dim,
        starts.data_ptr(),
        len(out),
        0 if ids is None else ids.data_ptr(),
        0 if weights is None else weights.data_ptr(),
        places,
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def _whole(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()
