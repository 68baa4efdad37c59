"""DNN: the perceptron of Deep Neural Networks for YouTube Recommendations, Covington et al., 2016.

logit = tower of [v_1, v_2, ..., dense]
"""

from dataclasses import field

from torch import Tensor

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Flat
from shoal.models.nn.mlp import Tower


class DNN(Flat):
    """A perceptron over the vectors of the features and the numbers; a logit for each label."""

    several_labels = True

    class Options(Flat.Options):
        initial_range: float = 1e-4  # first values lie within +- this; unseen ids add almost 0
        layers: list[int] = field(default_factory=lambda: [400, 400, 400])
        dropout: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.outputs = len(facts.labels) if self.several_labels and facts.labels else 1
        self.deep = Tower([self.flat_width, *options.layers], options.dropout, self.outputs)

    def logits(self, batch: Batch) -> Tensor:
        return self.deep(self.features(batch))
