"""A linear layer, its relu and the dropout behind it: few passes over what the layer makes.

On ARM bias, relu and mask are one pass of the native core; on a GPU backward is one of Triton's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.kernels.core import load_core
from shoal.kernels.machine import has_triton, on_arm

_core = load_core()
Mask = Tensor | tuple[int, int] | None


def takes_mask_key(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether `linear_relu` of these makes its mask itself, of a key and a first position."""
    return on_arm(x, weight, bias)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor, mask: Mask, drop: float) -> Tensor:
    """relu(x weight^T + bias) * mask: [n, i], [o, i], [o] -> [n, o].

    mask: 0 and 1 / (1 - drop) for every value [..., o]; or, where `takes_mask_key`, the key and the
    position of the first value; None: nothing is dropped.
    """
    return _LinearRelu.apply(x, weight, bias, mask, drop)


class _LinearRelu(torch.autograd.Function):
    """What the mask dropped is 0 as is what relu left out, so backward needs no mask."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mask: Mask, drop: float
    ) -> Tensor:
        if not isinstance(mask, Tensor) and on_arm(x, weight, bias):
            key = (0, 0) if mask is None else mask
            out = activate_(x @ weight.t(), bias, drop, *key)
        else:
            out = torch.addmm(bias, x, weight.t()).relu_()
        if isinstance(mask, Tensor):
            out *= mask.view_as(out)
        ctx.save_for_backward(x, weight, out)
        ctx.scale = 1.0 / (1.0 - drop) if drop < 1.0 else 0.0
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        grad, of_bias = relu_backward(grads[0], out)
        back = _scaled(grad, weight, ctx.scale) if ctx.needs_input_grad[0] else None
        of_bias = of_bias if ctx.scale == 1.0 else of_bias * ctx.scale
        return back, _scaled(grad.t(), x, ctx.scale), of_bias, None, None


def _scaled(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """a b, times scale."""
    return a @ b if scale == 1.0 else torch.addmm(a.new_empty(()), a, b, beta=0, alpha=scale)


def relu_backward(grad: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients [n, width] where out [n, width] is above 0, and their sums [width]."""
    if out.is_cuda and has_triton():
        from shoal.kernels.gpu import relu

        return relu.relu_backward(grad, out)
    if on_arm(grad, out):
        return activate_back(grad, out)
    grad = torch.ops.aten.threshold_backward(grad, out, 0)
    return grad, grad.sum(0)


def activate_(x: Tensor, bias: Tensor, drop: float, key: int, first: int) -> Tensor:
    """relu(x + bias), dropped by the mask of `key` from position `first` on; in place, `on_arm`.

    x [n, width], bias [width]; drop 0: nothing is dropped.
    """
    if not on_arm(x, bias) or x.dim() != 2 or bias.shape != x.shape[1:]:
        raise ValueError(f"a layer of {list(x.shape)} and a bias of {list(bias.shape)}")
    threads = torch.get_num_threads()
    _core.activate(x.data_ptr(), bias.data_ptr(), *x.shape, key % 2**64, drop, first, threads)
    return x


def activate_back(grad: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
    """grad where made is above 0, and the sums of its columns: [n, width] twice -> and [width]."""
    if not on_arm(grad, made) or grad.dim() != 2 or grad.shape != made.shape:
        raise ValueError(f"gradients {list(grad.shape)} of {list(made.shape)}")
    back, sums = torch.empty_like(grad), grad.new_empty(grad.shape[1])
    addresses = back.data_ptr(), sums.data_ptr(), torch.get_num_threads()
    _core.activate_back(grad.data_ptr(), made.data_ptr(), *grad.shape, *addresses)
    return back, sums
