"""WideDeep: Wide & Deep Learning for Recommender Systems, Cheng et al., DLRS 2016.

A linear model that remembers and a perceptron that generalises, trained together:

    logit = <w, dense> + tower of [v_1, v_2, ..., dense]
    with wide_slots      + sum of w_i over the ids
"""

from dataclasses import field

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init
from shoal.models.clicks.dnn import DNN


class WideDeep(DNN):
    """The deep part is DNN's; the one bias of both parts is the tower's."""

    several_labels = False

    class Options(DNN.Options):
        layers: list[int] = field(default_factory=lambda: [512, 256, 128, 32])
        wide_slots: bool = False  # ids take part in the wide part, too, with a weight each

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.dense_weights = nn.Parameter(torch.zeros(facts.num_dense))
        self.linear: Embeddings | None = None
        if options.wide_slots:
            self.linear = self.embeddings(1, Init("constant", 0.0), suffix="_linear")

    def logits(self, batch: Batch) -> Tensor:
        logits = self.deep(self.features(batch))
        if self.facts.num_dense:
            logits = logits + self.dense(batch) @ self.dense_weights
        if self.linear is not None:
            logits = logits + self.slots(self.linear, batch).sum((1, 2))
        return logits
