"""ESMM: Entire Space Multi-Task Model, Ma et al., SIGIR 2018.

Who buys has clicked: the chance of a purchase is learned over all samples, as a product.

    P(click) = sigmoid(tower_1)        P(click and purchase) = P(click) sigmoid(tower_2)

More labels are more factors.
"""

from dataclasses import field

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.labels.base import SeveralLabels
from shoal.models.nn.mlp import Tower


class ESMM(SeveralLabels):
    """Labels are steps, each only after the one before; vectors are shared, towers are not."""

    class Options(SeveralLabels.Options):
        tower_layers: list[int] = field(default_factory=lambda: [400, 400])

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.need_steps()
        self.towers = nn.ModuleList(
            Tower([self.flat_width, *options.tower_layers], options.dropout)
            for _ in range(self.outputs)
        )

    def logits(self, batch: Batch) -> Tensor:
        x = self.features(batch)
        logits = [self.towers[0](x)]
        for tower in self.towers[1:]:
            logits.append(both(logits[-1], tower(x)))
        return self.together(logits)


def both(first: Tensor, second: Tensor) -> Tensor:
    """The log odds of sigmoid(a) sigmoid(b): -ln(e^-a + e^-b + e^(-a-b)), of [b] each."""
    return -torch.stack([-first, -second, -first - second]).logsumexp(0)
