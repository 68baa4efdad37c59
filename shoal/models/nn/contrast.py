"""Contrastive terms: two views of one thing are more alike than views of two things."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.nn.losses import Gather


def contrast(ids: Tensor, one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Sum over ids [b] of -ln softmax(cos(one of id, other of all) / temperature) at the id itself.

    one, other: two views of everything, [n, d]. The softmax runs over all n, not over those of the
    batch, so that a term does not depend on the rest of the batch.
    """
    return F.cross_entropy(_alike(ids, one, other, temperature), ids, reduction="sum")


def contrast_within(
    ids: Tensor, one: Tensor, other: Tensor, temperature: float, gather: Gather
) -> Tensor:
    """The same among what the global batch holds, where every id counts alike however often it is
    there. The mean over a batch is that over its different ids.
    """
    every = gather(ids)
    counts = torch.zeros(len(other), device=ids.device)
    counts.index_add_(0, every, torch.ones(len(every), device=ids.device))
    there = counts > 0
    logits = _alike(ids, one, other, temperature).masked_fill(~there, -torch.inf)
    share = len(every) / there.sum().clamp(min=1)
    return (share / counts[ids] * F.cross_entropy(logits, ids, reduction="none")).sum()


def _alike(ids: Tensor, one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """cos(one of id, other of all) / temperature: [b, n]."""
    left = F.normalize(F.embedding(ids, one), dim=-1)
    return left / temperature @ F.normalize(other, dim=-1).T
