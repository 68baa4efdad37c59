"""Cross entropy over a whole catalogue whose rows are spread over the ranks.

Positions gather, rows stay: every rank has the hidden states of all ranks, makes the logits of its
own rows, and what must be known of a position (highest logit, sum of exponentials, logit of the
target) is three numbers per rank. Gradients of rows are made where the rows are; gradients of
hidden states go back to where they came from. No table is ever gathered, and logits exist for a
block of positions at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.nn.losses import LOGITS_BLOCK
from shoal.world import World


def parallel_softmax_loss(
    world: World,
    hidden: Tensor,
    rows: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    place: Tensor,
    largest: int,
) -> Tensor:
    """Summed cross entropy of this rank's positions: hidden [n, d], targets [n] -> scalar.

    rows [k, d] and bias [k] are this rank's candidates; place maps any target to its place among
    them, -1 where another rank has it. `largest` is the most candidates that any rank has. Every
    rank must weigh its loss alike, since gradients of rows come from everybody's positions.
    """
    return _ParallelSoftmax.apply(hidden, rows, bias, targets, place, world, largest)


class _ParallelSoftmax(torch.autograd.Function):
    """Gradients are made in forward, while a block's logits are at hand; backward scales."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        rows: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        place: Tensor,
        world: World,
        largest: int,
    ) -> Tensor:
        learns = any(ctx.needs_input_grad)
        everyone = world.exchange([hidden, targets])
        counts = [len(parts[0]) for parts in everyone]
        states = torch.cat([parts[0] for parts in everyone])  # [positions, d]
        wanted = place[torch.cat([parts[1] for parts in everyone])]  # [positions]
        start = sum(counts[: world.rank])
        losses = hidden.new_zeros(len(states))
        states_grad, rows_grad = torch.zeros_like(states), torch.zeros_like(rows)
        bias_grad = None if bias is None else torch.zeros_like(bias)
        block = max(1, LOGITS_BLOCK // max(1, largest))
        for first in range(0, len(states), block):
            part = slice(first, first + block)
            mine = (wanted[part] >= 0).nonzero().squeeze(1)  # positions whose target is here
            column = wanted[part][mine]
            logits = states[part] @ rows.T  # [block, k]
            if bias is not None:
                logits += bias
            size = len(logits)
            facts = logits.new_zeros(3, size)  # highest logit, sum of exponentials, target's logit
            facts[0] = -torch.inf
            if len(rows):
                facts[0] = logits.amax(1)
                facts[2, mine] = logits[mine, column]
                logits.sub_(facts[0].unsqueeze(1)).exp_()
                facts[1] = logits.sum(1)
            all_facts = world.stack(facts)  # [ranks, 3, block]
            highest = all_facts[:, 0].amax(0)
            shares = (all_facts[:, 0] - highest).exp_()
            total = (shares * all_facts[:, 1]).sum(0)
            losses[part] = total.log() + highest - all_facts[:, 2].sum(0)
            if learns and len(rows):
                excess = logits.mul_((shares[world.rank] / total).unsqueeze(1))  # probabilities ...
                excess[mine, column] -= 1.0  # ... - truth
                torch.mm(excess, rows, out=states_grad[part])
                rows_grad.addmm_(excess.T, states[part])
                if bias_grad is not None:
                    bias_grad += excess.sum(0)
        if learns:
            count = counts[world.rank]
            came = world.all_to_all(states_grad, counts, [count] * world.size)
            hidden_grad = came.view(world.size, count, -1).sum(0) if count else hidden[:0]
            ctx.save_for_backward(hidden_grad, rows_grad, bias_grad)
        return losses[start : start + counts[world.rank]].sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, rows_grad, bias_grad = ctx.saved_tensors
        scaled = [None if g is None else g * grads[0] for g in (hidden_grad, rows_grad, bias_grad)]
        return (*scaled, None, None, None, None)
