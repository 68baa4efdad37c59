"""FiBiNET: Combining Feature Importance and Bilinear Feature Interaction, RecSys 2019, Huang et al.

Features are weighed by a squeeze and excitation network, and pairs meet by a bilinear form:

    a = relu(W_2 relu(W_1 [mean of v_1, mean of v_2, ...]))        p_ij = (W v_i) * v_j, i < j
    logit = LR + tower of [p of all v_i, p of all a_i v_i]
"""

from dataclasses import field
from typing import Literal

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.fm import FM
from shoal.models.clicks.lr import LR
from shoal.models.nn.mlp import Tower


class FiBiNET(FM):
    """W is one for all, one for each feature, or one for each pair (`bilinear`)."""

    left: Tensor
    right: Tensor

    class Options(FM.Options):
        initial_range: float = 0.1
        # one matrix for all features, one for each, or one for each pair
        bilinear: Literal["all", "each", "pair"] = "pair"
        reduction: int = 3  # factor by which squeeze and excitation reduces the number of features
        layers: list[int] = field(default_factory=lambda: [400, 400, 400])
        dropout: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        number, dim = self.num_vectors, options.dim
        inner = max(1, number // options.reduction)
        self.squeeze = nn.Sequential(
            nn.Linear(number, inner, bias=False),
            nn.ReLU(),
            nn.Linear(inner, number, bias=False),
            nn.Sigmoid(),  # the paper's relu may silence a feature for good
        )
        left, right = torch.triu_indices(number, number, 1)
        self.register_buffer("left", left, persistent=False)
        self.register_buffer("right", right, persistent=False)
        forms = {"all": 1, "each": number, "pair": len(left)}[options.bilinear]
        self.forms = nn.Parameter(torch.randn(forms, dim, dim) * dim**-0.5)
        self.deep = Tower([2 * len(left) * dim, *options.layers], options.dropout)

    def logits(self, batch: Batch) -> Tensor:
        vectors = self.vectors(batch)
        weighed = vectors * self.squeeze(vectors.mean(2)).unsqueeze(2)
        read = torch.cat([self._pairs(vectors), self._pairs(weighed)], 1)
        return LR.logits(self, batch) + self.deep(read)

    def _pairs(self, vectors: Tensor) -> Tensor:
        """(W v_i) * v_j of all pairs i < j: [b, n, dim] -> [b, pairs * dim]."""
        forms = self.forms[self.left] if self.options.bilinear == "each" else self.forms
        sent = torch.einsum(
            "bpd,pde->bpe", vectors[:, self.left], forms.expand(len(self.left), -1, -1)
        )
        return (sent * vectors[:, self.right]).flatten(1)
