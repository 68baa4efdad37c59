"""NGCF: Neural Graph Collaborative Filtering, Wang et al., SIGIR 2019.

Vectors spread over the graph of users and items through learned weights, and the layers are
laid side by side:

    E(k+1) = leaky_relu((A E(k) + E(k)) W1 + (A E(k) * E(k)) W2)        E = [E(0), norm(E(1)), ...]
"""

from dataclasses import field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Facts
from shoal.models.general.lightgcn import LightGCN
from shoal.models.nn.dropout import shared_dropout
from shoal.models.nn.mlp import begin_xavier


class NGCF(LightGCN):
    """Graph convolution with weights, trained by the BPR loss."""

    cuda_graph_safe = False

    class Options(LightGCN.Options):
        n_layers: int = 0  # number of layers; 0: as many as hidden_size_list has
        # width of each layer's output
        hidden_size_list: list[int] = field(default_factory=lambda: [64, 64, 64])
        node_dropout: float = 0.0  # dropout of the edges of the graph
        message_dropout: float = 0.1  # dropout of the messages between nodes
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
        begin_xavier(self)

    def last_layer(self, first: Tensor) -> Tensor:
        layer, layers, weights = first, [first], self.graph.weights
        if self.training:
            weights = shared_dropout(weights.unsqueeze(1), self.options.node_dropout).squeeze(1)
        for sums, products in zip(self.sums, self.products):
            spread = self.graph(layer, weights)
            layer = F.leaky_relu(sums(spread + layer) + products(spread * layer), 0.2)
            if self.training:
                layer = shared_dropout(layer, self.options.message_dropout)
            layers.append(F.normalize(layer, dim=1))
        return torch.cat(layers, 1)
