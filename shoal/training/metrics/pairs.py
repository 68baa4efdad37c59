"""Counting pairs in the right order: the numerator of AUC, for many users at once."""

from __future__ import annotations

import torch
from torch import Tensor


def pair_counts(users: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the rows of each user, in ascending order of their ids, [u] each:

    numerator float64, (positive, negative) pairs where the positive scores higher, ties counting
    half (nan where a score is nan); positives int64; negatives int64. Exact.
    """
    order = scores.argsort()
    order = order[users[order].argsort(stable=True)]
    users, scores, positive = users[order], scores[order], labels[order] == 1
    user_starts = torch.ones(len(users), dtype=torch.bool)
    user_starts[1:] = users[1:] != users[:-1]
    tie_starts = user_starts.clone()
    tie_starts[1:] |= scores[1:] != scores[:-1]
    user = user_starts.cumsum(0) - 1  # [n], number of the row's user
    tie = tie_starts.cumsum(0) - 1  # [n], number of the row's run of equal scores
    num_users = int(user_starts.sum())
    positives = torch.bincount(user[positive], minlength=num_users)
    negatives = torch.bincount(user, minlength=num_users) - positives
    tie_positives = torch.bincount(tie[positive], minlength=int(tie_starts.sum()))
    tie_negatives = torch.bincount(tie, minlength=len(tie_positives)) - tie_positives
    owner = user[tie_starts]
    lower = tie_negatives.cumsum(0) - tie_negatives - (negatives.cumsum(0) - negatives)[owner]
    # In integers, doubled, so that the sum is exact in any order.
    twice = torch.zeros_like(positives)
    twice.index_add_(0, owner, tie_positives * (2 * lower + tie_negatives))
    numerator = twice.double() / 2
    numerator[user[scores.isnan()]] = torch.nan
    return numerator, positives, negatives
