"""AFM: Attentional Factorization Machines, Xiao et al., IJCAI 2017.

Attention decides which pairs of features count:

    a_ij  = softmax over pairs of <h, relu(W (v_i * v_j) + b)>
    logit = LR + <p, sum over i < j of a_ij (v_i * v_j)>
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Penalised
from shoal.models.clicks.fm import FM
from shoal.models.clicks.lr import LR
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.mlp import begin_normal


class AFM(Penalised, FM):
    """FM with attention over its pairs; p begins as the number of pairs, where it is FM."""

    places: Tensor

    class Options(Penalised.Options, FM.Options):
        dim: int = 16
        initial_range: float = 0.1
        attention_size: int = 16  # width inside the attention
        dropout: float = 0.0
        reg_weight: float = 0.0  # weight of the norm of the attention's first layer

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        pairs = self.num_vectors * (self.num_vectors - 1) // 2
        self.attention = nn.Sequential(
            nn.Linear(options.dim, options.attention_size),
            nn.ReLU(),
            nn.Linear(options.attention_size, 1, bias=False),
        )
        begin_normal(self.attention)
        self.dropout = Dropout(options.dropout)
        self.out = nn.Parameter(torch.full((options.dim,), float(pairs)))
        places = torch.triu_indices(self.num_vectors, self.num_vectors, offset=1)
        self.register_buffer("places", places, persistent=False)  # of both in each pair [2, pairs]

    def penalised(self) -> Iterable[Tensor]:
        return [*self.attention[0].parameters()][:1]

    def logits(self, batch: Batch) -> Tensor:
        vectors = self.vectors(batch)
        left, right = self.places.unbind()
        pairs = vectors.index_select(1, left) * vectors.index_select(1, right)  # [b, pairs, dim]
        weights = self.dropout(self.attention(pairs).squeeze(2).softmax(1))  # [b, pairs]
        return LR.logits(self, batch) + (weights * (pairs @ self.out)).sum(1)
