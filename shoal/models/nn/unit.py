"""Vectors of length 1."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SHORTEST = 1e-12  # vectors of less are not stretched any further


def unit(x: Tensor) -> Tensor:
    """x / its length along the last dimension: [..., d] -> [..., d]."""
    if x.requires_grad and not torch.compiler.is_compiling():
        return _Unit.apply(x)
    return F.normalize(x, dim=-1, eps=SHORTEST)


class _Unit(torch.autograd.Function):
    """unit; its gradient is what stands at right angles to the vector: half the passes of torch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_(min=SHORTEST)
        made = x / length
        ctx.save_for_backward(made, length)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        made, length = ctx.saved_tensors
        along = (grads[0] * made).sum(-1, keepdim=True)
        return torch.addcmul(grads[0], made, along, value=-1.0).div_(length)
