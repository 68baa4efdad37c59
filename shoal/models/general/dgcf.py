"""DGCF: Disentangled Graph Collaborative Filtering, Wang et al., SIGIR 2020.

Vectors have parts, one for each intent, and an edge belongs to intents by shares, which follow from
the vectors at its ends. In every layer, some times over:

    S = softmax of A over intents                 A begins with 1 everywhere
    e_u(new) = sum over neighbours i of S_ui / sqrt(sum of S_u sum of S_i) * e_i, for each intent
    A_ui = A_ui + <e_u(new) / |.|, tanh(e_i / |.|)>

The layers are averaged; loss = BPR + L2 of E(0) + cor_weight * distance correlation of intents,
which is 0 where they are independent, of some nodes that every step draws.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Output
from shoal.models.general.lightgcn import LightGCN
from shoal.models.nn.dropout import uniform_like
from shoal.models.options import Count


class DGCF(LightGCN):
    """Graph convolution for several intents.

    x [nodes, intents, d / intents]    shares of edges [2 * edges, intents]
    """

    cuda_graph_safe = False

    class Options(LightGCN.Options):
        n_factors: Count = 4  # intents; each has as many columns of a vector
        n_iterations: Count = 2  # how often a layer finds new shares of the edges
        n_layers: int = 1  # how often vectors spread over the graph
        reg_weight: float = 1e-3
        cor_weight: float = 0.01  # weight of the correlation of intents
        # users, and as many items, whose intents are compared in a step
        cor_nodes: Count = 64

        def __post_init__(self) -> None:
            if self.embedding_size % self.n_factors:
                raise ValueError(
                    f"model.embedding_size is {self.embedding_size}, and {self.n_factors} intents "
                    "(model.n_factors) share it evenly: choose a multiple"
                )

    def last_layer(self, first: Tensor) -> Tensor:
        ends, neighbours = self.graph.ends, self.graph.neighbours
        layer = total = first.unflatten(1, (self.options.n_factors, -1))
        scores = first.new_ones(len(ends), self.options.n_factors)
        for _ in range(self.options.n_layers):
            sources = layer.index_select(0, neighbours)
            direction = torch.tanh(F.normalize(sources, dim=2))
            for _ in range(self.options.n_iterations):
                weights = self._weights(scores.softmax(1)).unsqueeze(2)
                spread = torch.zeros_like(first).view_as(layer)
                spread = spread.index_add(0, ends, sources * weights)
                near = F.normalize(spread, dim=2).index_select(0, ends)
                scores = scores + (near * direction).sum(2)
            layer = spread
            total = total + layer
        return total.flatten(1) / (self.options.n_layers + 1)

    def _weights(self, shares: Tensor) -> Tensor:
        """Shares of edges [2 * edges, intents], divided by the roots of what their nodes have."""
        ends, neighbours = self.graph.ends, self.graph.neighbours
        sums = shares.new_zeros(self.graph.nodes, shares.shape[1]).index_add(0, ends, shares)
        roots = sums.clamp(min=1e-8).rsqrt()
        return shares * roots.index_select(0, ends) * roots.index_select(0, neighbours)

    def forward(self, batch: Batch) -> Output:
        first, final = self.propagated()
        output = self.pair_loss(self.nodes(batch), first, final)
        if self.options.n_factors == 1 or not self.options.cor_weight:
            return output
        term = self.options.cor_weight * self._correlation(final)
        return Output(output.loss + output.count * term, output.count)

    def _correlation(self, final: Tensor) -> Tensor:
        """How much neighbouring intents know of each other, of nodes that all processes draw."""
        sides = final.split([self.facts.num_users, self.facts.num_items])
        drawn = []
        for side in sides:
            numbers = uniform_like(side.new_empty(len(side), 1), shared=True).squeeze(1)
            nodes = numbers.topk(min(self.options.cor_nodes, len(side))).indices
            drawn.append(side.index_select(0, nodes))
        parts = torch.cat(drawn).chunk(self.options.n_factors, 1)
        pairs = pairwise(parts)
        total = torch.stack([distance_correlation(left, right) for left, right in pairs]).sum()
        return total / (len(parts) * (len(parts) + 1) / 2)


def distance_correlation(left: Tensor, right: Tensor) -> Tensor:
    """0 where two samples [n, d] are independent, 1 where one is the other, turned and scaled."""
    first, second = _centred_distances(left), _centred_distances(right)
    both, own = (first * second).mean(), first.square().mean() * second.square().mean()
    return (both.clamp(min=0.0) + 1e-8).sqrt() / ((own + 1e-16).sqrt().sqrt() + 1e-10)


def _centred_distances(x: Tensor) -> Tensor:
    squares = x.square().sum(1)
    distances = (squares + squares.unsqueeze(1) - 2.0 * x @ x.T).clamp(min=0.0)
    distances = (distances + 1e-8).sqrt()
    rows, columns = distances.mean(1, keepdim=True), distances.mean(0, keepdim=True)
    return distances - rows - columns + distances.mean()
