"""SharedBottom: Multitask Learning, Caruana, Machine Learning 1997.

One perceptron reads the features, and a tower for each label reads the perceptron:

    h = relu layers of x        logit_k = tower_k of h
"""

from dataclasses import field

from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.labels.base import SeveralLabels
from shoal.models.nn.mlp import MLP, Tower, begin_normal


class SharedBottom(SeveralLabels):
    """What labels have in common is learned once."""

    class Options(SeveralLabels.Options):
        layers: list[int] = field(default_factory=lambda: [400, 400])

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        sizes = [self.flat_width, *options.layers]
        self.bottom = MLP(sizes, options.dropout)
        begin_normal(self.bottom)
        self.towers = nn.ModuleList(
            Tower([sizes[-1], *options.tower_layers], options.dropout) for _ in range(self.outputs)
        )

    def logits(self, batch: Batch) -> Tensor:
        shared = self.bottom(self.features(batch))
        return self.together([tower(shared) for tower in self.towers])
