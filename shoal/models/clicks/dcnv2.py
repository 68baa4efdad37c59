"""DCNV2: DCN V2: Improved Deep & Cross Network, Wang et al., WWW 2021.

Cross layers make products of features, of one degree more each; a perceptron does the rest.

    x_0 = [v_1, v_2, ..., dense]        x_(l+1) = x_0 * (W_l x_l + b_l) + x_l
    parallel   logit = <w, [x_L, relu layers of x_0]>
    stacked    logit = <w, relu layers of x_L>

The DLRM-DCNv2 of MLPerf is stacked, has crosses of low rank, and relu layers that make the dense
values as wide as a feature's vector (`bottom_layers`) before they join x_0.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Flat, Penalised
from shoal.models.nn.mlp import MLP, begin_normal


class DCNV2(Penalised, Flat):
    """A cross network beside a perceptron, or below it."""

    gated: ClassVar[bool] = False
    recbole_options: ClassVar[Mapping[str, str]] = {"cross_layer_num": "cross_layers"}
    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "expert_num": "it is of mixed: true alone"
    }

    class Options(Penalised.Options, Flat.Options):
        # relu layers that dense values pass before they join x_0; none: they join as they are
        bottom_layers: list[int] = field(default_factory=list)
        cross_layers: int = 2
        low_rank: int | None = None  # rank of the cross layers' matrices; null: full matrices
        # false: full matrices, whatever low_rank is; null: low_rank decides
        mixed: Literal[False] | None = None
        # the perceptron beside the cross layers, or upon them
        structure: Literal["parallel", "stacked"] = "parallel"
        layers: list[int] = field(default_factory=lambda: [400, 400, 400])
        dropout: float = 0.0
        reg_weight: float = 0.0  # weight of the norms of the cross layers' matrices

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = self.flat_width
        sizes = [width, *options.layers]
        if facts.num_dense and options.bottom_layers:
            self.bottom = MLP([facts.num_dense, *options.bottom_layers], options.dropout)
            begin_normal(self.bottom)
        low_rank = None if options.mixed is False else options.low_rank
        self.cross = Cross(width, options.cross_layers, low_rank, self.gated)
        self.deep = MLP(sizes, options.dropout)
        self.out = nn.Linear(sizes[-1] + width * (options.structure == "parallel"), 1)
        begin_normal(self.deep)
        begin_normal(self.out)

    @property
    def flat_width(self) -> int:
        dense = self.options.bottom_layers[-1:] or [self.facts.num_dense]
        return self.width(self.options.dim) + (dense[0] if self.facts.num_dense else 0)

    def features(self, batch: Batch) -> Tensor:
        if not (self.facts.num_dense and self.options.bottom_layers):
            return super().features(batch)
        return torch.cat([self.flat(self.embed, batch), self.bottom(self.dense(batch))], 1)

    def penalised(self) -> list[Tensor]:
        return [weight for weight in self.cross.parameters() if weight.dim() == 2]

    def logits(self, batch: Batch) -> Tensor:
        first = self.features(batch)
        crossed = self.cross(first)
        if self.options.structure == "stacked":
            return self.out(self.deep(crossed)).squeeze(1)
        return self.out(torch.cat([crossed, self.deep(first)], 1)).squeeze(1)


class Cross(nn.Module):
    """Cross layers x <- x0 * (W x + b) + x, each one degree more: [b, width] -> [b, width].

    With `low_rank` r, W = U V of [width, r] and [r, width]. gated: the product is multiplied by
    sigmoid(G x) as well.
    """

    def __init__(self, width: int, layers: int, low_rank: int | None = None, gated: bool = False):
        super().__init__()
        self.layers = nn.ModuleList(_square(width, low_rank) for _ in range(layers))
        self.gates = nn.ModuleList(_square(width, low_rank) for _ in range(layers * gated))
        begin_normal(self)

    def forward(self, first: Tensor) -> Tensor:
        x = first
        for number, layer in enumerate(self.layers):
            projected = layer(x)
            if self.gates:
                projected = projected * self.gates[number](x).sigmoid()
            x = torch.addcmul(x, first, projected)
        return x


def _square(width: int, low_rank: int | None) -> nn.Module:
    """[b, width] -> [b, width]."""
    if low_rank is None:
        return nn.Linear(width, width)
    down, up = nn.Linear(width, low_rank, bias=False), nn.Linear(low_rank, width)
    return nn.Sequential(down, up)
