"""Losses, each summed over its samples: whoever knows the global count divides."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.nn.native import (
    core_takes_pairs,
    pair_gradients,
    pair_margins,
)


def bpr_loss(queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Sum of -ln sigmoid(<q, p> - <q, n>): [b, d], [b, d], [b, k, d] -> scalar.

    With one negative the difference is taken before the product, which halves the work.
    """
    if core_takes_pairs(queries, positives, negatives):
        return _PairLoss.apply(queries, positives, negatives)
    if negatives.shape[1] == 1:
        margins = (queries * (positives - negatives.squeeze(1))).sum(-1)  # [b]
    else:
        positive = (queries * positives).sum(-1, keepdim=True)
        margins = positive - (queries.unsqueeze(1) * negatives).sum(-1)  # [b, k]
    return -F.logsigmoid(margins).sum()


class _PairLoss(torch.autograd.Function):
    """bpr_loss of one negative by the native core: the same numbers, in two passes over the rows.

    The gradients of positives and negatives lie one after the other in memory: where both are rows
    of one table, a step takes them as they are.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        margins = pair_margins(queries, positives, negatives)
        terms, decays = torch.ops.aten.log_sigmoid_forward(margins)  # decays: exp(-|margins|)
        ctx.save_for_backward(queries, positives, negatives, margins, decays)
        return -terms.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        queries, positives, negatives, margins, decays = ctx.saved_tensors
        made = pair_gradients(queries, positives, negatives, margins, decays, float(grads[0]))
        return made[0], made[1], made[2].view_as(negatives)


def mean_distance(
    hidden: Tensor, items: Tensor, bias: Tensor | None, targets: Tensor, stop: int
) -> Tensor:
    """Sum of (logit of the target - mean logit of items 1 to stop - 1): what smooths labels.

    Cross entropy + s * this is the cross entropy with labels smoothed by s. hidden [n, d], items
    [rows, d], bias [rows], targets [n] (0 does not count) -> scalar. The mean is that of the rows,
    taken before the product: no logits of all items are made.
    """
    mean = items[1:stop].mean(0)
    distances = (hidden * (items[targets] - mean)).sum(-1)
    if bias is not None:
        distances = distances + bias[targets] - bias[1:stop].mean()
    return distances.where(targets > 0, 0.0).sum()
