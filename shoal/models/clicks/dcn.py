"""DCN: Deep & Cross Network for Ad Click Predictions, Wang et al., ADKDD 2017.

Cross layers of one vector each make products of one degree more each, beside a perceptron:

    x_(l+1) = x_0 <x_l, w_l> + b_l + x_l        logit = <w, [x_L, relu layers of x_0]>
"""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Flat, Penalised
from shoal.models.nn.mlp import MLP, begin_normal


class DCN(Penalised, Flat):
    """The first deep and cross network; DCNV2 has matrices in place of the vectors."""

    recbole_options: ClassVar[Mapping[str, str]] = {"cross_layer_num": "cross_layers"}

    class Options(Penalised.Options, Flat.Options):
        cross_layers: int = 3
        layers: list[int] = field(default_factory=lambda: [400, 400, 400])
        dropout: float = 0.0
        reg_weight: float = 0.0  # weight of the norms of the cross layers' vectors

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = self.flat_width
        self.cross = nn.ModuleList(nn.Linear(width, 1, False) for _ in range(options.cross_layers))
        self.biases = nn.Parameter(torch.zeros(options.cross_layers, width))
        sizes = [width, *options.layers]
        self.deep = MLP(sizes, options.dropout)
        self.out = nn.Linear(width + sizes[-1], 1)
        begin_normal(self)

    def penalised(self) -> list[Tensor]:
        return [weight for layer in self.cross for weight in layer.parameters()]

    def logits(self, batch: Batch) -> Tensor:
        first = x = self.features(batch)
        for layer, bias in zip(self.cross, self.biases):
            x = first * layer(x) + bias + x
        return self.out(torch.cat([x, self.deep(first)], 1)).squeeze(1)
