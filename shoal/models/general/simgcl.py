"""SimGCL: Are Graph Augmentations Necessary? Simple Graph Contrastive Learning for Recommendation,
Yu et al., SIGIR 2022.

As SGL, but a view is the same graph with a little noise on every layer:

    E(k+1) = A E(k) + sign(A E(k)) * eps * noise / |noise|        E = mean of E(1) ... E(n_layers)

A node is contrasted with those of the batch and counts once, however often the batch has it; the
terms of users and of items are means, as the BPR loss is. RecBole-GNN has sums in its SimGCL: its
`lambda` is cl_weight / nodes of a batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Output
from shoal.models.general.lightgcn import LightGCN
from shoal.models.nn.dropout import uniform_like
from shoal.models.nn.losses import contrast_within


class SimGCL(LightGCN):
    """Contrast between two noisy views."""

    cuda_graph_safe = False

    class Options(LightGCN.Options):
        eps: float = 0.1  # length of the noise on a node
        temperature: float = 0.2  # temperature of the contrast between two views
        cl_weight: float = 0.05  # weight of the contrastive terms, means over the nodes of a batch
        reg_weight: float = 1e-4
        require_pow: bool = True

    def forward(self, batch: Batch) -> Output:
        nodes = self.nodes(batch)
        first, final = self.propagated()
        output = self.pair_loss(nodes, first, final)
        term = self.contrasted(nodes, self.last_layer(first, True), self.last_layer(first, True))
        return Output(output.loss + self.options.cl_weight * term, output.count)

    def contrasted(self, nodes: Tensor, first_view: Tensor, second_view: Tensor) -> Tensor:
        """The contrastive terms of a batch's users and items, each counted once: scalar."""
        users, tau = self.facts.num_users, self.options.temperature
        taken = nodes[:, 1] - users
        term = contrast_within(
            nodes[:, 0], first_view[:users], second_view[:users], tau, self.gather_global
        )
        return term + contrast_within(
            taken, first_view[users:], second_view[users:], tau, self.gather_global
        )

    def last_layer(self, first: Tensor, noisy: bool = False) -> Tensor:
        return torch.stack(self.layers(first, noisy)).mean(0)

    def layers(self, first: Tensor, noisy: bool) -> list[Tensor]:
        """E(1) ... E(n_layers), each of all nodes."""
        layer, outputs = first, []
        for _ in range(self.options.n_layers):
            layer = self.graph(layer)
            if noisy:
                noise = F.normalize(uniform_like(layer, shared=True), dim=1)
                layer = layer + layer.sign() * noise * self.options.eps
            outputs.append(layer)
        return outputs
