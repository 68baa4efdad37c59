"""Losses, each summed over its samples: whoever knows the global count divides."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.nn.native import exponentials_, logits_of

LOGITS_BLOCK = 1 << 24  # floats of logits held at a time: 64 MiB
GPU_BLOCKS = 16  # so many times more on a GPU, whose products want to be large


def bpr_loss(queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Sum of -ln sigmoid(<q, p> - <q, n>): [b, d], [b, d], [b, k, d] -> scalar.

    With one negative the difference is taken before the product, which halves the work. (A
    hand-written backward was measured and is no faster.)
    """
    if negatives.shape[1] == 1:
        margins = (queries * (positives - negatives.squeeze(1))).sum(-1)  # [b]
    else:
        positive = (queries * positives).sum(-1, keepdim=True)
        margins = positive - (queries.unsqueeze(1) * negatives).sum(-1)  # [b, k]
    return -F.logsigmoid(margins).sum()


def full_softmax_loss(
    hidden: Tensor,
    items: Tensor,
    targets: Tensor,
    block: int | None = None,
    bias: Tensor | None = None,
    stop: int | None = None,
) -> Tensor:
    """Sum of cross entropies over the whole catalogue: [n, d], [items, d], [n] -> scalar.

    Item 0 is padding: never a candidate, never a target; nor are items from `stop` on. `bias`
    [items] is added to the logits.
    Logits exist for `block` of the n positions at a time (None: as many as make 64 MiB), so memory
    never holds n x items.
    """
    if block is None:
        floats = LOGITS_BLOCK * (1 if items.device.type == "cpu" else GPU_BLOCKS)
        block = max(1, floats // items.shape[0])
    return _FullSoftmax.apply(hidden, items, targets, bias, block, stop or items.shape[0])


class _FullSoftmax(torch.autograd.Function):
    """All gradients are made in forward, while a block's logits are at hand; backward scales.

    With e = exp(logits) and their sums t, the gradients of the logits are e / t - truth. Products
    take e as it is and divide the small factor or the small result by t; truth is one item a row.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        items: Tensor,
        targets: Tensor,
        bias: Tensor | None,
        block: int,
        stop: int,
    ) -> Tensor:
        learns = any(ctx.needs_input_grad)
        made = torch.empty_like if len(hidden) else torch.zeros_like
        hidden_grad, items_grad = made(hidden), made(items)
        bias_grad = None if bias is None else made(bias)
        loss = hidden.new_zeros(())
        for start in range(0, hidden.shape[0], block):
            states, wanted = hidden[start : start + block], targets[start : start + block]
            logits = logits_of(states, items, bias)  # [block, items]
            # Masked here, not cut off: a slice's gradient would be one more pass over all rows.
            logits[:, 0] = -torch.inf
            logits[:, stop:] = -torch.inf
            loss -= logits.gather(1, wanted.unsqueeze(1)).sum()
            highest, totals = exponentials_(logits)
            exponentials, totals = logits, totals.unsqueeze(1)
            loss += totals.log().sum() + highest.sum()
            if not learns:
                continue
            part = torch.mm(exponentials, items, out=hidden_grad[start : start + block])
            part.div_(totals).sub_(items.index_select(0, wanted))
            keep = 1.0 if start else 0.0  # of the blocks before
            torch.addmm(items_grad, exponentials.T, states / totals, beta=keep, out=items_grad)
            items_grad.index_add_(0, wanted, states, alpha=-1.0)
            if bias_grad is not None:
                shares = totals.reciprocal().squeeze(1)
                torch.addmv(bias_grad, exponentials.T, shares, beta=keep, out=bias_grad)
                bias_grad.index_add_(0, wanted, torch.ones_like(shares), alpha=-1.0)
        if learns:
            ctx.gradients = [hidden_grad, items_grad, bias_grad]
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # In place, because one of them is as large as the catalogue: so backward works once.
        hidden_grad, items_grad, bias_grad = ctx.gradients
        ctx.gradients = None
        for gradient in (hidden_grad, items_grad, bias_grad):
            if gradient is not None:
                gradient.mul_(grads[0])
        return hidden_grad, items_grad, None, bias_grad, None, None


def sampled_softmax_loss(
    hidden: Tensor,
    positives: tuple[Tensor, Tensor],
    negatives: tuple[Tensor, Tensor],
    owner: Tensor,
    targets: Tensor,
    drawn: Tensor,
) -> Tensor:
    """Sum of cross entropies of a target against the negatives of its sample -> scalar.

    hidden     [n, d]
    positives  rows [n, d] of the targets and their offsets [n], added to the logits (a bias, less
               the logarithm of how often an item is drawn: so the loss tends to the full one)
    negatives  the same of each sample: rows [b, k, d], offsets [b, k]
    owner      [n] sample of each position
    targets    [n] and drawn [b, k]: ids; a negative that is the target does not count
    """
    rows, offsets = negatives
    right = (hidden * positives[0]).sum(-1, keepdim=True) + positives[1].unsqueeze(1)  # [n, 1]
    wrong = torch.bmm(rows[owner], hidden.unsqueeze(2)).squeeze(2) + offsets[owner]  # [n, k]
    wrong = wrong.masked_fill(drawn[owner] == targets.unsqueeze(1), -torch.inf)
    logits = torch.cat([right, wrong], 1)
    return (logits.logsumexp(1) - logits[:, 0]).sum()
