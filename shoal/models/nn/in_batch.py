"""Losses in which the other samples of the global batch are the negatives.

Every process must call them the same number of times, and every one sees the whole batch: so a term
is the same wherever the batch is cut.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Across = Callable[[Tensor], Tensor]  # Model.across: [b, ...] -> [global b, ...]


def in_batch_softmax(
    queries: Tensor, items: Tensor, ids: Tensor, across: Across, logq: Tensor | None
) -> Tensor:
    """Sum of -ln softmax(<q, i> - ln q(i)) at each query's own item, over the items of the batch.

    queries  [n, d]
    items    [n, d], what the queries are asked for
    ids      [n], theirs: the same item of another sample is no negative
    logq     ln of how often items occur in training [num_items]; None: no correction
    """
    every, numbers = across(items), across(ids)  # [global n, ...]
    right, wrong = (queries * items).sum(-1, keepdim=True), queries @ every.T
    if logq is not None:
        right, wrong = right - logq[ids].unsqueeze(1), wrong - logq[numbers]
    wrong = wrong.masked_fill(ids.unsqueeze(1) == numbers, -torch.inf)
    return (torch.cat([right, wrong], 1).logsumexp(1) - right.squeeze(1)).sum()


def alike(one: Tensor, other: Tensor, first: int, across: Across, temperature: float) -> Tensor:
    """Sum of -ln softmax at a sample's other view, over all other views of the global batch.

    one, other: two views of the samples [b, d]. As in SimCLR: views of one kind are compared with
    those of both, but not with themselves.
    """
    views = torch.cat([across(one), across(other)])  # [2 * global b, d]
    total, count = len(views) // 2, len(one)
    place = first + torch.arange(count, device=one.device)
    loss = one.new_zeros(())
    for mine, own, wanted in ((one, place, place + total), (other, place + total, place)):
        logits = mine @ views.T / temperature
        logits = logits.scatter(1, own.unsqueeze(1), -torch.inf)
        loss = loss + (logits.logsumexp(1) - logits.gather(1, wanted.unsqueeze(1)).squeeze(1)).sum()
    return loss


def uniformity(vectors: Tensor, across: Across) -> Tensor:
    """This process's share of ln of the mean of exp(-2 |x - y|^2) over pairs of the global batch.

    vectors [b, d] of length 1. The shares of all processes add up to the whole.
    """
    every = across(vectors)
    total = len(every)
    near = torch.exp(4.0 * (every @ every.T) - 4.0)  # |x - y|^2 = 2 - 2 <x, y>
    pairs = max(1, total * (total - 1))
    mean = (near.sum() - near.diagonal().sum()) / pairs
    return torch.log(mean.clamp(min=1e-12)) * (len(vectors) / max(1, total))
