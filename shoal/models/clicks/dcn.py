"""DCN: Deep & Cross Network for Ad Click Predictions, Wang et al., ADKDD 2017.

Cross layers of one vector each make products of one degree more each, beside a perceptron:

    x_(l+1) = x_0 <x_l, w_l> + b_l + x_l        logit = <w, [x_L, relu layers of x_0]>
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from shoal.data.batch import Batch
from shoal.models.base import Facts
from shoal.models.clicks.flat import Flat
from shoal.models.nn.mlp import MLP, begin_by_width


class DCN(Flat):
    """The first deep and cross network; DCNV2 has matrices in place of the vectors."""

    @dataclass
    class Options(Flat.Options):
        cross_layers: int = 3
        layers: list[int] = field(default_factory=lambda: [400, 400, 400])
        dropout: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = self.flat_width
        self.cross = nn.ModuleList(nn.Linear(width, 1, False) for _ in range(options.cross_layers))
        self.biases = nn.Parameter(torch.zeros(options.cross_layers, width))
        sizes = [width, *options.layers]
        self.deep = MLP(sizes, options.dropout)
        self.out = nn.Linear(width + sizes[-1], 1)
        begin_by_width(self)

    def logits(self, batch: Batch) -> Tensor:
        """Every x_l is a x_0 + c: a a number of the sample, c the sum of biases so far.

        So the products of x_0 with all w_l, and with the last weights, are all that is needed.
        """
        first = self.features(batch)
        crossed, deep = self.out.weight.tensor_split([first.shape[1]], 1)
        crosses: list[Any] = [layer.weight for layer in self.cross]
        weights = torch.cat([*crosses, crossed])  # [layers + 1, width]
        *along, last = (first @ weights.T).unbind(1)  # [b] each
        factor, shift = torch.ones_like(last), torch.zeros_like(weights[0])
        for dot, weight, bias in zip(along, weights, self.biases):
            factor = factor + factor * dot + shift @ weight
            shift = shift + bias
        logits = linear(self.deep(first), deep, self.out.bias).squeeze(1)
        return logits + factor * last + shift @ weights[-1]
