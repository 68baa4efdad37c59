"""MMoE: Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts.

Ma et al., KDD 2018. Every label weighs the same experts by its own gate:

    e_i = relu layers of x        g_k = softmax(W_k x)        logit_k = tower_k of sum g_ki e_i
"""

from dataclasses import field

from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.labels.base import Experts, Gate, SeveralLabels
from shoal.models.nn.mlp import Tower


class MMoE(SeveralLabels):
    """Experts that labels share as much as suits them."""

    class Options(SeveralLabels.Options):
        experts: int = 8  # perceptrons that all labels share
        expert_layers: list[int] = field(default_factory=lambda: [128])

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        sizes = [self.flat_width, *options.expert_layers]
        self.experts = Experts(options.experts, sizes, options.dropout)
        labels = range(self.outputs)
        self.gates = nn.ModuleList(Gate(sizes[0], options.experts) for _ in labels)
        self.towers = nn.ModuleList(
            Tower([sizes[-1], *options.tower_layers], options.dropout) for _ in labels
        )

    def logits(self, batch: Batch) -> Tensor:
        x = self.features(batch)
        experts = self.experts(x)
        return self.together(
            [tower(gate(x, experts)) for gate, tower in zip(self.gates, self.towers)]
        )
