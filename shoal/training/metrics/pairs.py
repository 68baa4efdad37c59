"""Counting pairs in the right order: the numerator of AUC, for many users at once."""

import numpy as np
import torch
from torch import Tensor


def pair_counts(users: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pair counts per user, in ascending order of user ids, [u] each:

    numerator float64, (positive, negative) pairs where the positive scores higher, ties counting
    half (nan where a score is nan); positives int64; negatives int64. Exact.
    """
    owner, score, positive = users.numpy(), scores.numpy(), labels.numpy() == 1
    if not len(owner):
        none = torch.zeros(0, dtype=torch.int64)
        return none.double(), none, none
    order = np.argsort(score)  # numpy sorts several times as quickly as torch
    if (owner != owner[0]).any():
        order = order[np.argsort(owner[order], kind="stable")]
    owner, score, positive = owner[order], score[order], positive[order]
    user_starts = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    tie_starts = np.append(True, (score[1:] != score[:-1]) | (owner[1:] != owner[:-1]))
    tie_starts = np.flatnonzero(tie_starts)  # where runs of equal scores begin
    negative = np.append(0, np.cumsum(~positive))  # [n + 1], those before each row
    # Negatives below the run of each, and those up to its end, less those of the users before.
    below, up_to = negative[tie_starts], negative[np.append(tie_starts[1:], len(owner))]
    positives = np.add.reduceat(positive, user_starts, dtype=np.int64)
    negatives = np.diff(negative[np.append(user_starts, len(owner))])
    # In integers, doubled, so that the sum is exact in any order.
    twice = np.add.reduceat(positive, tie_starts, dtype=np.int64) * (below + up_to)
    twice = np.add.reduceat(twice, np.searchsorted(tie_starts, user_starts))
    numerator = (twice - 2 * positives * negative[user_starts]) / 2
    odd = np.flatnonzero(np.isnan(score))
    numerator[np.searchsorted(user_starts, odd, side="right") - 1] = np.nan
    return torch.from_numpy(numerator), torch.from_numpy(positives), torch.from_numpy(negatives)
