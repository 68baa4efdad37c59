"""The multi-layer perceptron of this field: dropout, linear, relu, for every layer."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import linear, pad

from shoal.models.nn.dropout import Dropout

ALIGN = 8  # columns; products of other widths take slower kernels on a GPU


class Linear(nn.Linear):
    """nn.Linear; on a GPU with zeros behind the columns of input and weights, if they are odd.

    The input may have such zeros already.
    """

    def forward(self, x: Tensor) -> Tensor:
        more = -self.in_features % ALIGN
        if not more or not x.is_cuda:
            return super().forward(x)
        if x.shape[-1] == self.in_features:
            x = pad(x, (0, more))
        return linear(x, pad(self.weight, (0, more)), self.bias)


class MLP(nn.Sequential):
    """[..., sizes[0]] -> [..., sizes[-1]]; the last layer is activated as well."""

    def __init__(self, sizes: list[int], dropout: float = 0.0):
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(sizes):
            layers += [Dropout(dropout), Linear(width_in, width_out), nn.ReLU()]
        super().__init__(*layers)


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
