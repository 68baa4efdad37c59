"""Cross entropy over a whole catalogue whose rows are spread over the ranks.

Positions gather, rows stay: every rank has the hidden states of all ranks, makes the logits of its
own rows, and what must be known of a position (highest logit, sum of exponentials, logit of the
target) is three numbers per rank. Gradients of rows are made where the rows are; gradients of
hidden states return to their ranks. No table is ever gathered, and logits exist for a
block of positions at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from shoal.distributed.world import World
from shoal.embedding.softmax.full import SoftmaxGradients, block_size, take_gradients_once
from shoal.embedding.softmax.fused_cpu import CoreSoftmax
from shoal.kernels.softmax import exponentials_, in_one_pass, worth_it


def parallel_softmax_loss(
    world: World,
    hidden: Tensor,
    rows: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    place: Tensor,
    others: Tensor,
    largest: int,
    fused: CoreSoftmax | None = None,
) -> Tensor:
    """Summed cross entropy of this rank's positions: hidden [n, d], targets [n] -> scalar.

    rows [k, d] and bias [k] are this rank's; place maps any target to its place among them, -1
    where another rank has it; others [m] are places that are no candidates. `largest` is the most
    rows that any rank has. Every rank must weigh its loss alike, since gradients of rows come from
    the positions of all ranks. `fused` is used where it is faster.
    """
    return _ParallelSoftmax.apply(hidden, rows, bias, targets, place, others, world, largest, fused)


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
        others: Tensor,
        world: World,
        largest: int,
        fused: CoreSoftmax | None,
    ) -> Tensor:
        # Gather the positions of all ranks, and find the places of their targets.
        # states [positions, d], all_targets [positions]
        (states, all_targets), lengths = world.gather([hidden, targets])
        counts, target_places = [length for length, _ in lengths], place[all_targets]
        start = sum(counts[: world.rank])
        losses = hidden.new_zeros(len(states))
        some_here = len(rows) > len(others)
        block = block_size(max(1, largest), rows.device)
        gradients: SoftmaxGradients | CoreSoftmax | None = None
        # Every rank decides the same, with the native core or without it.
        if in_one_pass(len(states), rows.shape[1], largest):
            block = max(1, len(states))
        if not worth_it(len(states), rows.shape[1], largest):
            fused = None
        if any(ctx.needs_input_grad):
            gradients = fused or SoftmaxGradients(states, rows, bias, empty=not some_here)
        # Block by block: local logits, their sums over all ranks, then gradients.
        for first in range(0, len(states), block):
            block_states = states[first : first + block]
            target = target_places[first : first + block]
            positions = (target >= 0).nonzero().squeeze(1)  # positions whose target is here
            column = target[positions]
            facts = block_states.new_zeros(
                3, len(block_states)
            )  # highest logit, sum of exponentials, target's
            facts[0] = -torch.inf
            if fused is not None:
                facts[0], facts[1] = fused.begin(block_states)
                facts[2, positions] = fused.targets(positions, column)
            elif some_here:
                logits = linear(block_states, rows, bias)  # [block, k]
                logits[:, others] = -torch.inf
                facts[2, positions] = logits[positions, column]
                facts[0], facts[1] = exponentials_(logits)
            all_facts = world.stack(facts)  # [ranks, 3, block]
            highest = all_facts[:, 0].amax(0)
            shares = (all_facts[:, 0] - highest).exp_()
            total = (shares * all_facts[:, 1]).sum(0)
            losses[first : first + block] = total.log() + highest - all_facts[:, 2].sum(0)
            shares = shares[world.rank] / total
            if fused is not None:
                fused.add(shares, positions, column)
            elif isinstance(gradients, SoftmaxGradients) and some_here:
                gradients.add(first, logits, shares, block_states, rows, positions, column)
        # Return the gradients of states to the ranks that hold the positions.
        if gradients is not None:
            count = counts[world.rank]
            received = world.all_to_all(gradients.hidden, counts, [count] * world.size)
            gradients.hidden = (
                received.view(world.size, count, -1).sum(0) if count else hidden[:0].clone()
            )
        ctx.gradients = gradients
        return losses[start : start + counts[world.rank]].sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled = take_gradients_once(ctx).scaled(grads[0])
        return (*scaled, None, None, None, None, None, None)
