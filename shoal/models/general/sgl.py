"""SGL: Self-supervised Graph Learning for Recommendation, Wu et al., SIGIR 2021.

LightGCN, and two views of its graph, each without some of its edges, in which a node should look
more like itself than like any other:

    loss = BPR + ssl_weight * sum of -ln softmax(cos(z'_u, z''_v) / tau)_u, for users and for items
"""

from typing import Literal

from torch import Tensor

from shoal.models.base import Batch, Output
from shoal.models.general.lightgcn import LightGCN
from shoal.models.nn.dropout import shared_dropout
from shoal.models.nn.losses import contrast


class SGL(LightGCN):
    """Contrast between two views of the graph; every step draws new ones."""

    cuda_graph_safe = False

    class Options(LightGCN.Options):
        # what a view drops: nodes (ND), edges (ED), or other edges in every layer (RW)
        type: Literal["ED", "ND", "RW"] = "ED"
        n_layers: int = 3
        drop_ratio: float = 0.1  # share of the edges or nodes that a view leaves out
        ssl_tau: float = 0.5  # temperature of the contrast between two views
        ssl_weight: float = 0.05  # weight of the contrastive terms
        require_pow: bool = True

    def forward(self, batch: Batch) -> Output:
        nodes = self.nodes(batch)
        first, final = self.propagated()
        output = self.pair_loss(nodes, first, final)
        first_view, second_view = self._view(first), self._view(first)
        users, tau = self.facts.num_users, self.options.ssl_tau
        taken = nodes[:, 1] - users
        term = contrast(nodes[:, 0], first_view[:users], second_view[:users], tau)
        term = term + contrast(taken, first_view[users:], second_view[users:], tau)
        return Output(output.loss + self.options.ssl_weight * term, output.count)

    def _view(self, first: Tensor) -> Tensor:
        """All nodes, as they are in a graph of which something is missing."""
        weights = None if self.options.type == "RW" else self._drop()
        layer = total = first
        for _ in range(self.options.n_layers):
            layer = self.graph(layer, self._drop() if weights is None else weights)
            total = total + layer
        return total / (self.options.n_layers + 1)

    def _drop(self) -> Tensor:
        """Weights of the edges that are left; the same on all processes."""
        graph, ratio = self.graph, self.options.drop_ratio
        nodes = self.options.type == "ND"
        kept = graph.weights.new_ones(graph.nodes if nodes else graph.num_edges, 1)
        kept = (shared_dropout(kept, ratio) > 0).to(kept.dtype).squeeze(1)
        if nodes:
            kept = kept.index_select(0, graph.ends) * kept.index_select(0, graph.neighbours)
        else:
            kept = kept.index_select(0, graph.edges)
        return graph.normalised(kept)
