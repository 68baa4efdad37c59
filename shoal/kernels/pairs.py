"""BPR's loss, sum of -ln sigmoid(<q, p - n>): two passes over the rows, by the native core.

Torch would copy the vectors of pairs that are given by their places, and write a gradient for each
copy. Without the core all are plain torch; results agree to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.kernels.core import load_core
from shoal.kernels.machine import is_plain

_core = load_core()


def bpr_loss(queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Sum of -ln sigmoid(<q, p> - <q, n>): [b, d], [b, d], [b, k, d] -> scalar."""
    if core_takes_pairs(queries, positives, negatives):
        return _PairLoss.apply(queries, positives, negatives)
    if negatives.shape[1] == 1:  # the difference is taken before the product: half the work
        margins = (queries * (positives - negatives.squeeze(1))).sum(-1)  # [b]
    else:
        positive = (queries * positives).sum(-1, keepdim=True)
        margins = positive - (queries.unsqueeze(1) * negatives).sum(-1)  # [b, k]
    return -F.logsigmoid(margins).sum()


class _PairLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        loss, slopes = pair_loss(queries, positives, negatives)
        ctx.save_for_backward(queries, positives, negatives, slopes)
        return torch.full((), loss)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        queries, positives, negatives, slopes = ctx.saved_tensors
        gradients = pair_gradients(queries, positives, negatives, slopes, grads[0].item())
        of_queries, of_positives, of_negatives = gradients.unbind()
        return of_queries, of_positives, of_negatives.unsqueeze(1)


def loss_of_places(rows: Tensor, places: Tensor) -> Tensor:
    """`bpr_loss` of rows [n, d]; places [3, b]: of queries, positives and negatives."""
    if takes_placed(rows, places):
        return _PlacedPairLoss.apply(rows, places)
    queries, positives, negatives = F.embedding(places, rows).unbind()
    return bpr_loss(queries, positives, negatives.unsqueeze(1))


class _PlacedPairLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor) -> Tensor:
        loss, slopes = placed_pair_loss(rows, places)
        ctx.save_for_backward(rows, places, slopes)
        return torch.full((), loss)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        rows, places, slopes = ctx.saved_tensors
        return placed_pair_gradients(rows, places, slopes, grads[0].item()), None


def core_takes_pairs(queries: Tensor, positives: Tensor, negatives: Tensor) -> bool:
    """Whether the core can make the loss of these pairs: on any machine and any threads."""
    shape = queries.shape
    if _core is None or len(shape) != 2 or positives.shape != shape:
        return False
    if negatives.shape != (shape[0], 1, shape[1]):
        return False
    return is_plain(queries) and is_plain(positives) and is_plain(negatives)


def _check_pairs(queries: Tensor, positives: Tensor, negatives: Tensor) -> None:
    """The core is given addresses: what lies there must be what it takes it for."""
    if not core_takes_pairs(queries, positives, negatives):
        shapes = [list(x.shape) for x in (queries, positives, negatives)]
        raise ValueError(f"pairs of {shapes}; they must be float32 [b, d], [b, d] and [b, 1, d]")


def pair_loss(queries: Tensor, positives: Tensor, negatives: Tensor) -> tuple[float, Tensor]:
    """Sum of -ln sigmoid(<q, p - n>): [b, d], [b, d], [b, 1, d]; and 1 - sigmoid of each [b]."""
    _check_pairs(queries, positives, negatives)
    size, dim = queries.shape
    slopes = torch.empty(size)
    loss = _core.pair_loss(
        queries.data_ptr(),
        positives.data_ptr(),
        negatives.data_ptr(),
        size,
        dim,
        slopes.data_ptr(),
        torch.get_num_threads(),
    )
    return loss, slopes


def pair_gradients(
    queries: Tensor, positives: Tensor, negatives: Tensor, slopes: Tensor, scale: float
) -> Tensor:
    """Gradients of scale * `pair_loss`, whose slopes are given: [3, b, d]."""
    _check_pairs(queries, positives, negatives)
    size, dim = queries.shape
    if slopes.shape != (size,) or not is_plain(slopes):
        raise ValueError(f"{size} pairs have as many slopes")
    out = torch.empty(3, size, dim)
    begin, step = out.data_ptr(), 4 * size * dim
    _core.pair_gradients(
        queries.data_ptr(),
        positives.data_ptr(),
        negatives.data_ptr(),
        size,
        dim,
        slopes.data_ptr(),
        scale,
        [begin, begin + step, begin + 2 * step],
        torch.get_num_threads(),
    )
    return out


def takes_placed(rows: Tensor, places: Tensor) -> bool:
    """Whether the core can make the loss of pairs: rows [n, d], places [3, b] in them."""
    if _core is None or rows.dim() != 2 or not is_plain(rows) or torch.compiler.is_compiling():
        return False
    right = places.dim() == 2 and places.shape[0] == 3 and places.dtype == torch.int64
    return right and places.is_cpu and places.is_contiguous()


def placed_pair_loss(rows: Tensor, places: Tensor) -> tuple[float, Tensor]:
    """`pair_loss` of the rows [n, d] that three lists of places name [3, b]."""
    slopes = torch.empty(places.shape[1])
    loss = _core.placed_pair_loss(*_placed(rows, places), slopes.data_ptr(), _threads(places))
    return loss, slopes


def placed_pair_gradients(rows: Tensor, places: Tensor, slopes: Tensor, scale: float) -> Tensor:
    """The gradients of all rows, times scale: [n, d]."""
    if slopes.shape != places.shape[1:] or not is_plain(slopes):
        raise ValueError(f"{places.shape[1]} pairs have as many slopes")
    out = torch.empty_like(rows)
    _core.placed_pair_gradients(
        *_placed(rows, places), slopes.data_ptr(), scale, out.data_ptr(), _threads(places)
    )
    return out


def _placed(rows: Tensor, places: Tensor) -> tuple[int, ...]:
    if not takes_placed(rows, places):
        raise ValueError(f"pairs of rows {list(rows.shape)} at places {list(places.shape)}")
    return rows.data_ptr(), *rows.shape, places.data_ptr(), places.shape[1]


def _threads(places: Tensor) -> int:
    """A thread for every thousand pairs or two."""
    return max(1, min(torch.get_num_threads(), places.shape[1] // 1024))
