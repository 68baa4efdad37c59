"""DCNV2: DCN V2: Improved Deep & Cross Network, Wang et al., WWW 2021.

Cross layers make products of features, of one degree more each; a perceptron does the rest.

    x_0 = [v_1, v_2, ..., dense]        x_(l+1) = x_0 * (W_l x_l + b_l) + x_l
    parallel   logit = <w, [x_L, relu layers of x_0]>
    stacked    logit = <w, relu layers of x_L>
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.models.base import Facts
from shoal.models.clicks.flat import Flat
from shoal.models.nn.interactions import Cross
from shoal.models.nn.mlp import MLP, begin_by_width


class DCNV2(Flat):
    """A cross network beside a perceptron, or below it."""

    gated: ClassVar[bool] = False

    @dataclass
    class Options(Flat.Options):
        cross_layers: int = 2
        low_rank: int | None = None  # None: W is whole; a number: of this rank
        # the perceptron beside the cross layers, or upon them
        structure: Literal["parallel", "stacked"] = "parallel"
        layers: list[int] = field(default_factory=lambda: [400, 400, 400])
        dropout: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        if options.structure not in ("parallel", "stacked"):
            raise ValueError(
                f"model.structure is {options.structure!r}; {type(self).__name__} is parallel or "
                "stacked"
            )
        width = self.flat_width
        sizes = [width, *options.layers]
        self.cross = Cross(width, options.cross_layers, options.low_rank, self.gated)
        self.deep = MLP(sizes, options.dropout)
        self.out = nn.Linear(sizes[-1] + width * (options.structure == "parallel"), 1)
        begin_by_width(self.deep)
        begin_by_width(self.out)

    def logits(self, batch: Batch) -> Tensor:
        first = self.features(batch)
        crossed = self.cross(first)
        if self.options.structure == "stacked":
            return self.out(self.deep(crossed)).squeeze(1)
        return self.out(torch.cat([crossed, self.deep(first)], 1)).squeeze(1)
