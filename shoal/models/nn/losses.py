"""Losses, each summed over its samples: the strategy divides by the global count."""

from __future__ import annotations

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


class BPRLoss(nn.Module):
    """`bpr_loss` as a part of a model, which the log shows."""

    def forward(self, queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        return bpr_loss(queries, positives, negatives)
