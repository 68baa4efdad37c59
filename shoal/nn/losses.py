"""Losses, each summed over its samples: whoever knows the global count divides."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LOGITS_BLOCK = 1 << 22  # floats of logits held at a time: 16 MiB


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
    Logits exist for `block` of the n positions at a time (None: as many as make 16 MiB), so memory
    never holds n x items.
    """
    if block is None:
        block = max(1, LOGITS_BLOCK // items.shape[0])
    return _FullSoftmax.apply(hidden, items, targets, bias, block, stop or items.shape[0])


class _FullSoftmax(torch.autograd.Function):
    """All gradients are made in forward, while a block's logits are at hand; backward scales."""

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
        hidden_grad = torch.empty_like(hidden)
        items_grad, bias_grad = None, None if bias is None else torch.zeros_like(bias)
        loss = hidden.new_zeros(())
        for start in range(0, hidden.shape[0], block):
            part = slice(start, start + block)
            wanted = targets[part].unsqueeze(1)
            if bias is None:
                logits = hidden[part] @ items.T  # [block, items]
            else:
                logits = torch.addmm(bias, hidden[part], items.T)
            # Masked here, not cut off: the gradient of a slice would be one more pass over all rows.
            logits[:, 0] = -torch.inf
            logits[:, stop:] = -torch.inf
            highest = logits.amax(1)
            loss += highest.sum() - logits.gather(1, wanted).sum()
            excess = torch.softmax(logits, 1)  # probabilities, row by row in the cache ...
            # The highest logit's probability is 1 / sum of exp(logit - highest): never 0.
            loss -= excess.amax(1).log().sum()
            if learns:
                excess.scatter_add_(1, wanted, excess.new_full(wanted.shape, -1.0))  # ... - truth
                torch.mm(excess, items, out=hidden_grad[part])
                if items_grad is None:
                    items_grad = excess.T @ hidden[part]
                else:
                    items_grad.addmm_(excess.T, hidden[part])
                if bias_grad is not None:
                    bias_grad += excess.sum(0)
        if learns:
            items_grad = torch.zeros_like(items) if items_grad is None else items_grad
            ctx.save_for_backward(hidden_grad, items_grad, bias_grad)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, items_grad, bias_grad = ctx.saved_tensors
        if bias_grad is not None:
            bias_grad = bias_grad * grads[0]
        return hidden_grad * grads[0], items_grad * grads[0], None, bias_grad, None, None


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
