"""Contrastive terms: two views of one thing are more alike than views of two things."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def contrast(ids: Tensor, one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Sum over ids [b] of -ln softmax(cos(one of id, other of all) / temperature) at the id itself.

    one, other: two views of everything, [n, d]. The sum runs over all n, not over those of the
    batch, so that a term does not depend on what else is in the batch or where it is cut.
    """
    left, right = F.normalize(F.embedding(ids, one), dim=1), F.normalize(other, dim=1)
    logits = left @ right.T / temperature
    return F.cross_entropy(logits, ids, reduction="sum")
