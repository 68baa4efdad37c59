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
    given = [x] if weights is None else [x, weights]
    if not on_arm(*given) or x.dim() != 2:
        every = torch.arange(len(x), device=x.device) if ids is None else ids
        return F.embedding_bag(
            every, x, starts, mode="sum", per_sample_weights=weights, include_last_offset=True
        )
    places = len(x) if ids is None else len(ids)
    for one in [starts] if ids is None else [starts, ids]:
        if one.dtype != torch.int64 or one.dim() != 1:
            raise ValueError(f"bags of {one.dtype} {list(one.shape)}: starts and ids are int64 [n]")
    starts, ids, weights = starts.contiguous(), _whole(ids), _whole(weights)
    if not len(starts) or (weights is not None and weights.shape != (places,)):
        raise ValueError(f"bags of {places} places have a start, an end and as many weights")
    out = x.new_empty(len(starts) - 1, x.shape[1])
    more = [0 if one is None else one.data_ptr() for one in (ids, weights)]
    bags = starts.data_ptr(), len(out), *more, places
    _core.sum_bags(x.data_ptr(), *x.shape, *bags, out.data_ptr(), torch.get_num_threads())
    return out


def _whole(given: Tensor | None) -> Tensor | None:
    return None if given is None else given.contiguous()
