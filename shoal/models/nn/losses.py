"""Losses, each summed over its samples: whoever knows the global count divides."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.kernels.pairs import loss_of_pairs, loss_of_places


def bpr_loss(queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Sum of -ln sigmoid(<q, p> - <q, n>): [b, d], [b, d], [b, k, d] -> scalar."""
    if negatives.shape[1] == 1:  # the difference is taken before the product: half the work
        return loss_of_pairs(queries, positives, negatives)
    positive = (queries * positives).sum(-1, keepdim=True)
    margins = positive - (queries.unsqueeze(1) * negatives).sum(-1)  # [b, k]
    return -F.logsigmoid(margins).sum()


def placed_bpr_loss(rows: Tensor, places: Tensor) -> Tensor:
    """bpr_loss of rows [n, d]; places [2 + k, b]: those of queries, positives and negatives."""
    if places.shape[0] == 3:
        return loss_of_places(rows, places)
    queries, positives, negatives = F.embedding(places, rows).split([1, 1, places.shape[0] - 2])
    return bpr_loss(queries.squeeze(0), positives.squeeze(0), negatives.transpose(0, 1))


def length_sum(x: Tensor, often: Tensor, power: bool) -> Tensor:
    """Sum of often * the length of x, or of half its square: [n, d], [n] -> scalar.

    Nothing but zeros has no length, and no gradient.
    """
    return _LengthSum.apply(x, often, power)


class _LengthSum(torch.autograd.Function):
    """length_sum, whose gradient is x times a number for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, often: Tensor, power: bool) -> Tensor:
        lengths = torch.linalg.vector_norm(x, dim=1)
        shares = often if power else (often / lengths).masked_fill_(lengths == 0, 0.0)
        ctx.save_for_backward(x, shares)
        return 0.5 * (often @ lengths.square_()) if power else often @ lengths

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x, shares = ctx.saved_tensors
        return x * (shares * grads[0]).unsqueeze(1), None, None


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


class BPRLoss(nn.Module):
    """`bpr_loss` as a part of a model, which the log shows."""

    def forward(self, queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        return bpr_loss(queries, positives, negatives)
