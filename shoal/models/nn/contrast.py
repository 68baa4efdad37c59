"""Contrastive terms: two views of one thing are more alike than views of two things."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.kernels.softmax import exponentials_
from shoal.models.nn.unit import unit
from shoal.models.nn.user_items import distinct

BLOCK = 1 << 18  # floats of logits made at a time: what a cache holds


def contrast(ids: Tensor, one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Sum over ids [b] of -ln softmax(cos(one of id, other of all) / temperature) at the id itself.

    one, other: two views of everything, [n, d]. The softmax runs over all n, not over those of the
    batch, so that a term does not depend on what else is in the batch or where it is cut.
    """
    if ids.is_cpu and not torch.compiler.is_compiling():  # an id is there more than once: no matter
        ids, places = distinct(ids)
        left, right = _directions(ids, one, other, temperature)
        return _Contrast.apply(left, right, ids, torch.bincount(places, minlength=len(ids)))
    return F.cross_entropy(_alike(ids, one, other, temperature), ids, reduction="sum")


def contrast_within(
    ids: Tensor,
    one: Tensor,
    other: Tensor,
    temperature: float,
    across: Callable[[Tensor], Tensor],
) -> Tensor:
    """The same among what the global batch holds, where every id counts alike however often it is
    there. The mean over a batch is that over its different ids. across: Model.across
    """
    every = across(ids)
    counts = torch.zeros(len(other), device=ids.device)
    counts.index_add_(0, every, torch.ones(len(every), device=ids.device))
    there = counts > 0
    logits = _alike(ids, one, other, temperature).masked_fill(~there, -torch.inf)
    share = len(every) / there.sum().clamp(min=1)
    return (share / counts[ids] * F.cross_entropy(logits, ids, reduction="none")).sum()


def _alike(ids: Tensor, one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """cos(one of id, other of all) / temperature: [b, n]."""
    left, right = _directions(ids, one, other, temperature)
    return left @ right.T


def _directions(
    ids: Tensor, one: Tensor, other: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Vectors whose products are cos(one of id, other of all) / temperature: [b, d], [n, d]."""
    return unit(F.embedding(ids, one)) / temperature, unit(other)


class _Contrast(torch.autograd.Function):
    """Cross entropies of ids, each counted so often: [b, d], [n, d], [b], [b] -> scalar.

    Gradients are made in forward, while some logits are at hand; backward scales.
    """

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, ids: Tensor, counts: Tensor) -> Tensor:
        times = counts.to(left.dtype).unsqueeze(1)
        sure = right[ids]
        loss = -(times * left * sure).sum()
        of_left, of_right = times * -sure, torch.zeros_like(right)
        of_right.index_add_(0, ids, times * left, alpha=-1.0)
        each = max(1, BLOCK // len(right))
        parts = (left.split(each), times.split(each), of_left.split(each))
        for some, often, back in zip(*parts):
            powers = some @ right.T
            highest, totals = exponentials_(powers)
            loss += (often.squeeze(1) * (totals.log() + highest)).sum()
            shares = often / totals.unsqueeze(1)
            back.addcmul_(powers @ right, shares)
            of_right.addmm_(powers.T, some * shares)
        ctx.save_for_backward(of_left, of_right)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of_left, of_right = ctx.saved_tensors
        return of_left * grads[0], of_right * grads[0], None, None
