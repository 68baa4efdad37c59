"""SpectralCF: Spectral Collaborative Filtering, Zheng et al., RecSys 2018.

Filters on the spectrum of the graph, which need no eigenvectors: U U^T + U Λ U^T = I + L.

    L = I - D^-1 A        E(k+1) = sigmoid((I + L) E(k) W_k)        E = [E(0), ..., E(n_layers)]

trained by the BPR loss plus an L2 term on the E of the nodes in the batch.
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.general.lightgcn import LightGCN


class SpectralCF(LightGCN):
    """Spectral filters on the graph of users and items."""

    cuda_graph_safe = False

    class Options(LightGCN.Options):
        n_layers: int = 4  # number of filters, one after the other
        reg_weight: float = 1e-3  # weight of the L2 penalty on the vectors of a batch

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        self.filters = nn.ParameterList(
            torch.randn(width, width) * 0.02 + 0.01 for _ in range(options.n_layers)
        )

    def last_layer(self, first: Tensor) -> Tensor:
        degrees = self.graph.starts.diff().clamp(min=1).sqrt().unsqueeze(1)
        layer, layers = first, [first]
        for weights in self.filters:
            spread = self.graph(layer * degrees) / degrees  # D^-1 A, of D^-1/2 A D^-1/2
            layer = torch.sigmoid((2.0 * layer - spread) @ weights)
            layers.append(layer)
        return torch.cat(layers, 1)

    def forward(self, batch: Batch) -> Output:
        final = self.propagated()[1]
        return self.pair_loss(self.nodes(batch), final, final)
