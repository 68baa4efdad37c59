"""Contrastive terms: two views of one thing are more alike than views of two things."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def contrast(
    ids: Tensor, one: Tensor, other: Tensor, temperature: float, weights: Tensor | None = None
) -> Tensor:
    """Sum over ids [b] of -ln softmax(cos(one of id, other of all) / temperature) at the id itself.

    one, other: two views of everything, [n, d]. The softmax runs over all n, not over those of the
    batch, so that a term does not depend on what else is in the batch or where it is cut.
    weights: of the terms [b]
    """
    left, right = F.normalize(F.embedding(ids, one), dim=1), F.normalize(other, dim=1)
    logits = left @ right.T / temperature
    if weights is None:
        return F.cross_entropy(logits, ids, reduction="sum")
    return (weights * F.cross_entropy(logits, ids, reduction="none")).sum()


def once(ids: Tensor, number: int, across: Callable[[Tensor], Tensor]) -> Tensor:
    """Weights with which every id counts alike, however often the global batch has it: [b].

    ids are below `number`; across: Model.across. The weights of a batch have the mean 1.
    """
    every = across(ids)
    counts = torch.zeros(number, device=ids.device)
    counts.index_add_(0, every, torch.ones(len(every), device=ids.device))
    share = len(every) / (counts > 0).sum().clamp(min=1)
    return share / counts[ids]
