"""XSimGCL: Towards Extremely Simple Graph Contrastive Learning for Recommendation, Yu et al., TKDE
2023.

One noisy pass serves both: its mean of layers is recommended from, and contrasted with one of its
own layers.

    loss = BPR(E) + cl_weight * contrast(E, E(layer_cl))
"""

import torch

from shoal.models.base import Batch, Facts, Output
from shoal.models.general.simgcl import SimGCL


class XSimGCL(SimGCL):
    """Contrast across layers of one noisy pass."""

    class Options(SimGCL.Options):
        eps: float = 0.2
        cl_weight: float = 0.1
        layer_cl: int = 1  # the layer that is contrasted, from 1

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        if not 1 <= options.layer_cl <= options.n_layers:
            raise ValueError(
                f"model.layer_cl is {options.layer_cl}; XSimGCL has the layers 1 to "
                f"{options.n_layers} (model.n_layers)"
            )

    def forward(self, batch: Batch) -> Output:
        nodes, first = self.nodes(batch), self.first_layer()
        layers = self.layers(first, noisy=True)
        final = torch.stack(layers).mean(0)
        output = self.pair_loss(nodes, first, final)
        term = self.contrasted(nodes, final, layers[self.options.layer_cl - 1])
        return Output(output.loss + self.options.cl_weight * term, output.count)
