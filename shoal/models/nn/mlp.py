"""The multi-layer perceptron of this field: dropout, linear, relu, for every layer."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from shoal.models.nn.dropout import Dropout

ALIGN = 8  # columns; products of other widths take slower kernels on a GPU


class Linear(nn.Linear):
    """nn.Linear; on a GPU with zeros behind the columns of input and weights, if they are odd.

    The input may have such zeros already.
    """

    def forward(self, x: Tensor) -> Tensor:
        return linear(*self.aligned(x), self.bias)

    def aligned(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Input and weights, as wide as a GPU wants them."""
        more = -self.in_features % ALIGN
        if not more or not x.is_cuda:
            return x, self.weight
        if x.shape[-1] == self.in_features:
            x = pad(x, (0, more))
        return x, pad(self.weight, (0, more))


class MLP(nn.Sequential):
    """[..., sizes[0]] -> [..., sizes[-1]]; the last layer is activated as well."""

    def __init__(self, sizes: list[int], dropout: float = 0.0):
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(sizes):
            layers += [Dropout(dropout), Linear(width_in, width_out), nn.ReLU()]
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda or torch.compiler.is_compiling():
            return super().forward(x)
        for k in range(0, len(self), 3):
            x = activated(self[k](x), self[k + 1])  # type: ignore[arg-type]
        return x


def activated(x: Tensor, layer: Linear) -> Tensor:
    """relu(layer(x)) in one pass over what it makes, as a GPU's library of products offers it."""
    x, weight = layer.aligned(x)
    parts: list[Tensor] = [x.reshape(-1, x.shape[-1]), weight, layer.bias]
    if torch.is_autocast_enabled(x.device.type):
        kind = torch.get_autocast_dtype(x.device.type)
        parts = [part.to(kind) for part in parts]
    return _Activated.apply(*parts).view(*x.shape[:-1], layer.out_features)


class _Activated(torch.autograd.Function):
    """relu(x weight^T + bias): [n, i], [o, i], [o] -> [n, o]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = torch._addmm_activation(bias, x, weight.t())
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight, out = ctx.saved_tensors
        grad, of_bias = relu_backward(grads[0], out)
        back = grad @ weight if ctx.needs_input_grad[0] else None
        return back, grad.t() @ x, of_bias


def relu_backward(grad: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients [n, width] where out [n, width] is above 0, and their sums [width]."""
    if out.is_cuda and find_spec("triton") is not None:
        from shoal.models.nn import triton_relu

        return triton_relu.relu_backward(grad, out)
    grad = torch.ops.aten.threshold_backward(grad, out, 0)
    return grad, grad.sum(0)


class Tower(nn.Module):
    """The deep part of a click model, relu layers that end in a number: [b, sizes[0]] -> [b].

    With several `outputs`: [b, outputs].
    """

    def __init__(self, sizes: list[int], dropout: float = 0.0, outputs: int = 1):
        super().__init__()
        self.hidden = MLP(sizes, dropout)
        self.out = nn.Linear(sizes[-1], outputs)
        begin_by_width(self)

    def forward(self, x: Tensor) -> Tensor:
        out = self.out(self.hidden(x))
        return out.squeeze(1) if out.shape[1] == 1 else out


def begin_by_width(module: nn.Module) -> None:
    """Weights of linear layers begin normal with deviation 1 / sqrt(inputs), biases at 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
