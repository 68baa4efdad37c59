"""AITM: Adaptive Information Transfer Multi-task framework, Xi et al., KDD 2021.

Labels are steps; what a step has learned is passed to the next, which weighs it against its own:

    p = relu(W z of the step before)        q = tower_k of x
    z = attention over {p, q}: sum of softmax(<key, query> / sqrt(d)) value
    logit_k = <w_k, z>        loss + weight * sum of max(P_k - P_(k-1), 0)

The last term: a later step is no likelier than the one before.
"""

from dataclasses import field

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.labels.base import SeveralLabels
from shoal.models.nn.mlp import MLP, begin_normal


class AITM(SeveralLabels):
    """Towers in a row, each with what came before."""

    class Options(SeveralLabels.Options):
        tower_layers: list[int] = field(default_factory=lambda: [400, 64])
        # weight of the penalty where a later label is likelier than an earlier one
        order_weight: float = 0.6

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.need_steps()
        sizes = [self.flat_width, *options.tower_layers]
        width, later = sizes[-1], range(self.outputs - 1)
        self.towers = nn.ModuleList(MLP(sizes, options.dropout) for _ in range(self.outputs))
        self.transfer = nn.ModuleList(MLP([width, width]) for _ in later)
        self.attention = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in later)
        self.out = nn.ModuleList(nn.Linear(width, 1) for _ in range(self.outputs))
        begin_normal(self)

    def logits(self, batch: Batch) -> Tensor:
        x = self.features(batch)
        state = self.towers[0](x)
        logits = [self.out[0](state).squeeze(1)]
        for k in range(1, self.outputs):
            pair = torch.stack([self.transfer[k - 1](state), self.towers[k](x)], 1)  # [b, 2, d]
            key, query, value = self.attention[k - 1](pair).chunk(3, 2)
            scores = (key * query).sum(2, keepdim=True) * pair.shape[2] ** -0.5
            state = (scores.softmax(1) * value).sum(1)
            logits.append(self.out[k](state).squeeze(1))
        return self.together(logits)

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        chances = logits.sigmoid()
        over = (chances[:, 1:] - chances[:, :-1]).clamp(min=0.0).sum(1)
        if batch.weights is not None:
            over = over * batch.weights
        return super().losses(logits, batch) + self.options.order_weight * over
