"""A linear layer and its relu on a GPU; backward is one pass of Triton's over what it made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x weight^T + bias), on a GPU where `runs_triton`: [n, i], [o, i], [o] -> [n, o]."""
    return _LinearRelu.apply(x, weight, bias)


class _LinearRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = torch.addmm(bias, x, weight.t()).relu_()
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        from shoal.kernels.gpu.relu import relu_backward

        x, weight, out = ctx.saved_tensors
        grad, of_bias = relu_backward(grads[0], out)
        back = grad @ weight if ctx.needs_input_grad[0] else None
        return back, grad.t() @ x, of_bias
