"""The multi-layer perceptron of this field: dropout, linear, relu, for every layer."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from shoal.kernels.linear_relu import linear_relu
from shoal.kernels.machine import runs_triton
from shoal.models.nn.dropout import Dropout


class Linear(nn.Linear):
    """nn.Linear; on a GPU with zeros behind the columns of input and weights, if they are odd.

    The input may have such zeros already.
    """

    def forward(self, x: Tensor) -> Tensor:
        x, weight = self.aligned(x)
        return linear(x, weight, self.bias)

    def aligned(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Input and weights, as wide as a GPU wants them."""
        more = -self.in_features % 8  # products of other widths take slower kernels on a GPU
        if not more or not x.is_cuda:
            return x, self.weight
        if x.shape[-1] == self.in_features:
            x = pad(x, (0, more))
        return x, pad(self.weight, (0, more))


class MLP(nn.Sequential):
    """[..., sizes[0]] -> [..., sizes[-1]]; the last layer is activated as well.

    The input may have zeros behind its columns, see Linear.
    """

    def __init__(self, sizes: list[int], dropout: float = 0.0):
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(sizes):
            # Without dropout something stands in its place: names of weights count the layers.
            first: nn.Module = Dropout(dropout) if dropout else nn.Identity()
            layers += [first, Linear(width_in, width_out), nn.ReLU()]
        super().__init__(*layers)
        self.width, self.dropout = sizes[0], dropout

    def forward(self, x: Tensor) -> Tensor:
        if self.dropout and x.shape[-1] > self.width:
            # Masks are drawn by the number of columns: those behind must not be among them.
            x = x[..., : self.width]
        if not (x.is_cuda and runs_triton()):
            return super().forward(x)
        layers: list[Any] = list(self)
        for k in range(0, len(layers), 3):
            x = activated(layers[k](x), layers[k + 1])
        return x


def activated(x: Tensor, layer: Linear) -> Tensor:
    """relu(layer(x)) in few passes over what it makes, on a GPU where `runs_triton`."""
    x, weight = layer.aligned(x)
    rows = x.reshape(-1, x.shape[-1])
    bias: Tensor = layer.bias
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        rows, weight, bias = rows.to(dtype), weight.to(dtype), bias.to(dtype)
    return linear_relu(rows, weight, bias).view(*x.shape[:-1], layer.out_features)


class Tower(nn.Module):
    """The deep part of a click model, relu layers that end in a number: [b, sizes[0]] -> [b].

    With several `outputs`: [b, outputs].
    """

    def __init__(self, sizes: list[int], dropout: float = 0.0, outputs: int = 1):
        super().__init__()
        self.hidden = MLP(sizes, dropout)
        self.out = nn.Linear(sizes[-1], outputs)
        begin_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        out = self.out(self.hidden(x))
        return out.squeeze(1) if out.shape[1] == 1 else out


def begin_normal(module: nn.Module, std: float | None = None) -> None:
    """Weights of linear layers begin normal, biases at 0; no std: 1 / sqrt(inputs) of a layer."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=std or layer.in_features**-0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def begin_xavier(module: nn.Module) -> None:
    """Weights of linear layers begin as Glorot and Bengio have them, normal; biases at 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
