"""FinalNet: FINAL: Factorized Interaction Layer for CTR Prediction, Zhu et al., SIGIR 2023.

Layers that multiply two projections of what they read, so that l of them hold products of up to 2^l
features. Two blocks of them read the features; each is taught by the mean of both:

    layer(x) = relu of [h, g * h]   or, of structure sum,   relu of h + g * h      g, h = W x + b
    logit    = mean of <w_1, block_1(x)> and <w_2, block_2(x)>
    loss     = loss(logit, label) + distill * (loss(logit_1, p) + loss(logit_2, p))

p is what both predict together, without gradient. Of the authors' program the batch norm and the
gate of features are left out: statistics of a batch depend on how it is cut.
"""

from dataclasses import field, replace
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.clicks.base import Flat
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.mlp import Linear, begin_normal
from shoal.models.options import NotNegative


class FactorizedLayer(nn.Module):
    """[b, width] -> [b, size]; concat: half of it is h, half g * h."""

    def __init__(self, width: int, size: int, concat: bool, dropout: float):
        super().__init__()
        self.concat = concat
        self.linear = Linear(width, size if concat else 2 * size)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        kept, gate = self.linear(x).chunk(2, -1)
        product = gate * kept
        x = torch.cat([kept, product], -1) if self.concat else kept + product
        return self.dropout(F.relu(x))


class FinalNet(Flat):
    """Two blocks of factorized layers, and their mean as a teacher."""

    class Options(Flat.Options):
        layers: list[int] = field(default_factory=lambda: [400, 400])  # widths of the first block
        second_layers: list[int] = field(default_factory=lambda: [400])  # widths of the second one
        # products beside what they are made of, or added to it
        structure: Literal["concat", "sum"] = "concat"
        distill: NotNegative = 1.0  # weight of what the mean of both blocks teaches each
        dropout: float = 0.0

        def __post_init__(self) -> None:
            for sizes in (self.layers, self.second_layers):
                odd = self.structure == "concat" and any(size % 2 for size in sizes)
                if not sizes or odd:
                    raise ValueError(
                        "FinalNet has at least one layer in each block, and with structure concat "
                        f"half of each layer is products: {sizes} needs even widths, or "
                        "model.structure=sum"
                    )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        concat, self.blocks = options.structure == "concat", nn.ModuleList()
        for sizes in (options.layers, options.second_layers):
            block = nn.Sequential()
            for width, size in pairwise([self.flat_width, *sizes]):
                block.append(FactorizedLayer(width, size, concat, options.dropout))
            self.blocks.append(block.append(nn.Linear(sizes[-1], 1)))
        begin_normal(self)

    def both(self, batch: Batch) -> list[Tensor]:
        """The log odds of each block: two of [b]."""
        x = self.features(batch)
        return [block(x).squeeze(1) for block in self.blocks]

    def logits(self, batch: Batch) -> Tensor:
        first, second = self.both(batch)
        return 0.5 * (first + second)

    def forward(self, batch: Batch) -> Output:
        both = self.both(batch)
        logits = 0.5 * (both[0] + both[1])
        losses = self.losses(logits, batch)
        if self.options.distill:
            teacher = logits.detach()
            logistic = self._labels[0].loss == "logistic"
            taught = replace(batch, labels=teacher.sigmoid() if logistic else teacher)
            for own in both:
                losses = losses + self.options.distill * self.losses(own, taught)
        return Output(losses.sum(), batch.size, logits.detach())
