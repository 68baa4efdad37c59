"""A whole perceptron by the native core: a few samples at a time go through all of its layers.

On ARM, where torch's products of layers this narrow keep half of the multipliers busy and relu,
bias, dropout and their gradients are passes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.embedding.softmax.native import on_arm
from shoal.models.nn.dropout import draw_key, draw_mask
from shoal.world.core import load_core

_core = load_core()
PART = 512  # samples that a thread takes: kPart in csrc/perceptron.cpp
# Columns of layers that are made so; with more torch's products are as fast.
NARROW, NARROW_ALONE = 64, 128  # alone: without gradients


@dataclass(frozen=True)
class Drops:
    """What is dropped of the input of each layer: how much, by which key, from which position."""

    rates: list[float]
    keys: list[int]
    firsts: list[int]

    @classmethod
    def draw(cls, rates: list[float], values: list[int]) -> Drops:
        """The next masks; values: of a sample, in front of each layer."""
        keys, firsts = [0] * len(rates), [0] * len(rates)
        for k, (rate, number) in enumerate(zip(rates, values)):
            if rate == 0.0:
                draw_mask(torch.Size(), 0.0)  # counted, as any
            else:
                key, firsts[k] = draw_key(number)
                keys[k] = key % 2**64
        return cls(rates, keys, firsts)


def takes(x: Tensor, weights: list[Tensor]) -> bool:
    """Whether the core can make these layers and is worth it; x [..., in]."""
    rows = x.shape[:-1].numel()
    if not weights or rows == 0 or not on_arm(x, *weights):
        return False
    widest = max(len(bias) for bias in weights[1::2])
    if widest > (NARROW if torch.is_grad_enabled() else NARROW_ALONE):
        return False
    # Torch's products can be shared by more threads than there are parts here.
    return torch.get_num_threads() <= max(1, rows // PART)


def perceptron(x: Tensor, weights: list[Tensor], rates: list[float] | None) -> Tensor:
    """relu layers of x [..., in]; weights: weight and bias of each; rates: what dropout in front of
    each drops, None: nothing, and nothing is drawn.
    """
    count = len(weights) // 2
    if rates is None:
        drops = Drops([0.0] * count, [0] * count, [0] * count)
    else:
        rows = max(1, x.shape[1:-1].numel())  # of a sample
        drops = Drops.draw(rates, [rows * weights[2 * k].shape[1] for k in range(count)])
    flat = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled():
        made = _Perceptron.apply(flat, drops, *weights)
    else:  # what is between layers need not be kept
        made = torch.empty(len(flat), len(weights[-1]))
        _forward(flat, drops, tuple(weights), [0] * (count - 1) + [made.data_ptr()])
    return made.view(*x.shape[:-1], made.shape[1])


class _Perceptron(torch.autograd.Function):
    """[n, in] -> [n, out]; what layers made is kept as the next one dropped it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, drops: Drops, *weights: Tensor) -> Tensor:
        made = [torch.empty(len(x), len(bias)) for bias in weights[1::2]]
        _forward(x, drops, weights, [one.data_ptr() for one in made])
        ctx.save_for_backward(x, *weights, *made)
        ctx.drops = drops
        return made[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        count = 2 * len(ctx.drops.rates)
        x, weights, made = ctx.saved_tensors[0], *_cut(ctx.saved_tensors[1:], count)
        grad, back = grads[0].contiguous(), [torch.empty_like(one) for one in weights]
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        _core.perceptron_back(
            *_given(x, ctx.drops, weights),
            [one.data_ptr() for one in made],
            grad.data_ptr(),
            0 if of_x is None else of_x.data_ptr(),
            [one.data_ptr() for one in back],
            torch.get_num_threads(),
        )
        return of_x, None, *back


def _forward(x: Tensor, drops: Drops, weights: tuple[Tensor, ...], made: list[int]) -> None:
    _core.perceptron(*_given(x, drops, weights), made, torch.get_num_threads())


def _cut(parts: tuple[Tensor, ...], at: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return parts[:at], parts[at:]


def _given(x: Tensor, drops: Drops, weights: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """What the core reads: addresses, widths, masks and the input."""
    widths = [x.shape[1], *(len(bias) for bias in weights[1::2])]
    for k, (weight, bias) in enumerate(zip(weights[::2], weights[1::2])):
        if weight.shape != (widths[k + 1], widths[k]) or bias.shape != (widths[k + 1],):
            raise ValueError(f"a layer of {list(weight.shape)} after one that is {widths[k]} wide")
    if not on_arm(x, *weights):
        raise ValueError("layers of the native core are float32, contiguous and on the CPU")
    masks = drops.rates, drops.keys, drops.firsts
    return [one.data_ptr() for one in weights], widths, *masks, x.data_ptr(), len(x)
