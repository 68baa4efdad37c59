"""LR: logistic regression, as in Predicting Clicks, Richardson et al., WWW 2007.

logit = b + sum of w_i over the ids + <w, dense>
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, ClickModel, Facts, Init


class LR(ClickModel):
    """A weight per id, a weight per dense value, a bias; all begin at 0."""

    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "embedding_size": "an id has a weight and no vector, there as here"
    }

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.linear = self.embeddings(1, Init("constant", 0.0), suffix="_linear")
        self.dense_weights = nn.Parameter(torch.zeros(facts.num_dense))
        self.bias = nn.Parameter(torch.zeros(()))

    def logits(self, batch: Batch) -> Tensor:
        weights = self.slots(self.linear, batch)  # [b, s, 1]
        logits = self.bias + weights.sum((1, 2))
        if not self.facts.num_dense:
            return logits
        return logits + self.dense(batch) @ self.dense_weights
