"""LightGCNpp: LightGCN++ of Revisiting LightGCN: Unexpected Inflexibility, Inconsistency, and A
Remedy Towards Improved Recommendation, Lee et al., RecSys 2024.

LightGCN, whose neighbours are weighed by other powers of their numbers of neighbours, count by
their directions alone, and are mixed with the learned vectors by a weight of its own:

    E(k+1) = D^-alpha A D^-beta (E(k) / |E(k)|)
    E      = gamma E(0) + (1 - gamma) mean of E(1) ... E(n_layers)

alpha is the power of the node that reads, beta that of the node that is read; the authors' program
has its values of Gowalla as defaults, as here. alpha = beta = 0.5 are LightGCN's weights.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Facts
from shoal.models.general.lightgcn import LightGCN
from shoal.models.options import Share


class LightGCNpp(LightGCN):
    """Graph convolution of directions, with powers of degrees to choose."""

    cuda_graph_safe = True
    ones: Tensor  # [2 * edges]: every neighbour counts as 1
    degrees: Tensor  # [nodes, 1]

    class Options(LightGCN.Options):
        reg_weight: float = 1e-4
        require_pow: bool = True
        alpha: float = 0.6  # power that a node's own number of neighbours divides by
        beta: float = -0.1  # power that the number of neighbours of a neighbour divides by
        gamma: Share = 0.2  # weight of the learned vectors; the rest is of the layers above

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        degrees = self.graph.starts.diff().clamp(min=1).float().unsqueeze(1)
        self.register_buffer("degrees", degrees, persistent=False)
        ones = torch.ones_like(self.graph.weights)
        self.register_buffer("ones", ones, persistent=False)

    def last_layer(self, first: Tensor) -> Tensor:
        options = self.options
        own_share, read_share = self.degrees.pow(-options.alpha), self.degrees.pow(-options.beta)
        layer, total = first, torch.zeros_like(first)
        for _ in range(options.n_layers):
            layer = own_share * self.graph(read_share * F.normalize(layer, dim=1), self.ones)
            total = total + layer
        return options.gamma * first + (1.0 - options.gamma) * total / options.n_layers
