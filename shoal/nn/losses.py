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
    hidden: Tensor, items: Tensor, targets: Tensor, block: int | None = None
) -> Tensor:
    """Sum of cross entropies over the whole catalogue: [n, d], [items, d], [n] -> scalar.

    Item 0 is padding: never a candidate, never a target. Logits exist for `block` of the n
    positions at a time (None: as many as make 16 MiB), so memory never holds n x items.
    """
    if block is None:
        block = max(1, LOGITS_BLOCK // items.shape[0])
    return _FullSoftmax.apply(hidden, items[1:], targets - 1, block)


class _FullSoftmax(torch.autograd.Function):
    """Both gradients are made in forward, while a block's logits are at hand; backward scales."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, items: Tensor, targets: Tensor, block: int) -> Tensor:
        learns = any(ctx.needs_input_grad)
        hidden_grad, items_grad = torch.empty_like(hidden), torch.zeros_like(items)
        loss = hidden.new_zeros(())
        for start in range(0, hidden.shape[0], block):
            part = slice(start, start + block)
            wanted = targets[part].unsqueeze(1)
            logits = hidden[part] @ items.T  # [block, items]
            highest = logits.amax(1, keepdim=True)
            logits.sub_(highest)
            loss -= logits.gather(1, wanted).sum()
            exponentials = logits.exp_()  # made once: for the loss and for both gradients
            totals = exponentials.sum(1, keepdim=True)
            loss += totals.log().sum()
            if learns:
                excess = exponentials.div_(totals)  # probabilities ...
                excess.scatter_add_(1, wanted, excess.new_full(wanted.shape, -1.0))  # ... - truth
                torch.mm(excess, items, out=hidden_grad[part])
                items_grad.addmm_(excess.T, hidden[part])
        if learns:
            ctx.save_for_backward(hidden_grad, items_grad)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden_grad, items_grad = ctx.saved_tensors
        return hidden_grad * grads[0], items_grad * grads[0], None, None
