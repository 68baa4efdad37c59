"""NGCF: Neural Graph Collaborative Filtering, Wang et al., SIGIR 2019.

Vectors spread over the graph of users and items through weights of their own, and the layers are
laid side by side:

    E(k+1) = leaky_relu((A E(k) + E(k)) W1 + (A E(k) * E(k)) W2)        E = [E(0), norm(E(1)), ...]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Facts
from shoal.models.general.lightgcn import LightGCN
from shoal.models.nn.dropout import shared_dropout
from shoal.models.nn.unit import unit

SLOPE = 0.2  # of the relu where it is below 0


class NGCF(LightGCN):
    """Graph convolution with weights, trained by the BPR loss."""

    cuda_graph_safe = False

    @dataclass
    class Options(LightGCN.Options):
        n_layers: int = 0  # 0: as many as hidden_size_list has
        hidden_size_list: list[int] = field(default_factory=lambda: [64, 64, 64])
        message_dropout: float = 0.1
        require_pow: bool = True

        def __post_init__(self) -> None:
            if self.n_layers not in (0, len(self.hidden_size_list)):
                raise ValueError(
                    f"model.n_layers is {self.n_layers}, and model.hidden_size_list has "
                    f"{len(self.hidden_size_list)} sizes, one for each layer; leave n_layers out"
                )
            self.n_layers = len(self.hidden_size_list)

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        sizes = [options.embedding_size, *options.hidden_size_list]
        self.sums = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.products = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        for layer in [*self.sums, *self.products]:
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def last_layer(self, first: Tensor) -> Tensor:
        layer, layers = first, [first]
        for sums, products in zip(self.sums, self.products):
            spread = self.graph(layer)
            layer = F.leaky_relu(sums(spread + layer) + products(spread * layer), SLOPE)
            if self.training:
                layer = shared_dropout(layer, self.options.message_dropout)
            layers.append(unit(layer))
        return torch.cat(layers, 1)
