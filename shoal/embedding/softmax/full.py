"""Cross entropy over a whole catalogue whose rows are at hand, a block of positions at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from shoal.kernels.softmax import exponentials_, gpu_kernels, worth_it


def block_size(items: int, device: torch.device) -> int:
    """How many positions have logits of all items at a time."""
    floats = 1 << (24 if device.type == "cpu" else 28)  # 64 MiB; products of a GPU should be large
    return max(1, floats // items)


def full_softmax_loss(
    hidden: Tensor,
    items: Tensor,
    targets: Tensor,
    block: int | None = None,
    bias: Tensor | None = None,
    stop: int | None = None,
    fused: Any = None,
) -> Tensor:
    """Sum of cross entropies over the whole catalogue: [n, d], [items, d], [n] -> scalar.

    Item 0 is padding: never a candidate, and a position whose target it is does not count. Items
    from `stop` on are no candidates either. `bias` [items] is added to the logits.
    Logits exist for `block` of the n positions at a time (None: as many as make 64 MiB), so memory
    never holds n x items. `fused` (a CoreSoftmax over the same rows), where it is worth it, keeps
    those of all positions, and the gradients of items and bias to itself.
    """
    if block is None:
        block = block_size(items.shape[0], items.device)
    if not worth_it(len(hidden), items.shape[1], items.shape[0]):
        fused = None
    return _FullSoftmax.apply(hidden, items, targets, bias, block, stop or items.shape[0], fused)


class _FullSoftmax(torch.autograd.Function):
    """Softmax loss with all gradients computed in forward, block by block; backward scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        items: Tensor,
        targets: Tensor,
        bias: Tensor | None,
        block: int,
        stop: int,
        fused: Any,
    ) -> Tensor:
        if fused is not None:
            ctx.gradients = fused
            highest, totals = fused.begin(hidden)
            right = fused.targets(None, targets).masked_fill_(targets >= stop, -torch.inf)
            counts = targets > 0
            fused.add(totals.reciprocal().where(counts, 0.0), None, targets)
            return (totals.log() + highest - right).where(counts, 0.0).sum()
        if any(ctx.needs_input_grad) and (kernels := kernels_for(hidden, items)) is not None:
            states, block_targets = hidden.contiguous(), targets.contiguous()
            losses, back, *rest = kernels.pool(states, items, bias, block_targets, stop)
            normalizers, parts = rest
            of_items, of_bias = kernels.row_gradients(
                parts, block_targets, normalizers, items, bias, stop
            )
            ctx.gradients = SoftmaxGradients.of(back, of_items, of_bias)
            return losses.sum()
        gradients = SoftmaxGradients(hidden, items, bias) if any(ctx.needs_input_grad) else None
        loss = hidden.new_zeros(())
        for start in range(0, hidden.shape[0], block):
            states, block_targets = hidden[start : start + block], targets[start : start + block]
            logits = linear(states, items, bias)  # [block, items]
            # Masked here, not cut off: a slice's gradient would be one more pass over all rows.
            logits[:, 0] = -torch.inf
            logits[:, stop:] = -torch.inf
            right = logits.gather(1, block_targets.unsqueeze(1)).squeeze(1)
            highest, totals = exponentials_(logits)
            counts = block_targets > 0
            loss += (totals.log() + highest - right).where(counts, 0.0).sum()
            if gradients is not None:
                shares = totals.reciprocal().where(counts, 0.0)
                gradients.add(start, logits, shares, states, items, None, block_targets)
        ctx.gradients = gradients
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, items, bias = take_gradients_once(ctx).scaled(grads[0])
        return hidden, items, None, bias, None, None, None


def kernels_for(hidden: Tensor, items: Tensor) -> Any:
    """The kernels that make no logits, on a GPU with Triton; else None."""
    is_supported = hidden.dtype == items.dtype == torch.float32 and items.is_contiguous()
    if not (hidden.is_cuda and len(hidden) and is_supported):
        return None
    return gpu_kernels(items.shape[1])


def take_gradients_once(ctx: Any) -> Any:
    """The gradients of forward, readable once: backward changes them in place."""
    gradients, ctx.gradients = ctx.gradients, None
    if gradients is None:
        raise RuntimeError("a softmax over a catalogue can be followed back once, not twice")
    return gradients


class SoftmaxGradients:
    """Gradients of summed cross entropies, made a block of positions at a time.

    With e = exp(logits) the gradients of the logits are e * share - truth, where a position's share
    is 1 / sum of e. Products take e as it is and scale the small factor or the small result; the
    truth is one item a row.
    """

    def __init__(self, hidden: Tensor, items: Tensor, bias: Tensor | None, empty: bool = False):
        """`empty`: nothing will be added."""
        make = torch.zeros_like if empty or not len(hidden) else torch.empty_like
        self.hidden, self.items = make(hidden), make(items)
        self.bias = None if bias is None else make(bias)

    @classmethod
    def of(cls, hidden: Tensor, items: Tensor, bias: Tensor | None) -> SoftmaxGradients:
        """Wrap gradients that are already computed."""
        gradients = cls.__new__(cls)
        gradients.hidden, gradients.items, gradients.bias = hidden, items, bias
        return gradients

    def add(
        self,
        start: int,
        exponentials: Tensor,
        shares: Tensor,
        states: Tensor,
        items: Tensor,
        positions: Tensor | None,
        targets: Tensor,
    ) -> None:
        """Positions start, start + 1, ...: exponentials [b, items], shares [b], states [b, d].

        targets [m] of those positions [m] whose target is among the items; positions=None: of all.
        """
        target_states = states if positions is None else states[positions]
        part = self.hidden[start : start + len(states)]
        torch.mm(exponentials, items, out=part).mul_(shares.unsqueeze(1))
        if positions is None:
            part.sub_(items.index_select(0, targets))
        else:
            part.index_add_(0, positions, items.index_select(0, targets), alpha=-1.0)
        keep = 1.0 if start else 0.0  # of the blocks before
        weighted = states * shares.unsqueeze(1)
        torch.addmm(self.items, exponentials.T, weighted, beta=keep, out=self.items)
        self.items.index_add_(0, targets, target_states, alpha=-1.0)
        if self.bias is not None:
            torch.addmv(self.bias, exponentials.T, shares, beta=keep, out=self.bias)
            self.bias.index_add_(0, targets, torch.ones_like(target_states[:, 0]), alpha=-1.0)
        if positions is None:  # 0 is the target of positions that do not count
            for gradient in (self.items, self.bias):
                if gradient is not None:
                    gradient[0] = 0.0

    def scaled(self, factor: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """All gradients times a number, in place: one of them is as large as the catalogue."""
        gradients = [one for one in (self.hidden, self.items, self.bias) if one is not None]
        if factor.device.type != "cpu" or float(factor) != 1.0:
            for gradient in gradients:
                gradient.mul_(factor)
        return self.hidden, self.items, self.bias
