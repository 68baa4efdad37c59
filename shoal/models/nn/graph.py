"""The graph of users and items, and vectors that spread over it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.kernels.graph import cut, spread


class InteractionGraph(nn.Module):
    """D^-1/2 A D^-1/2 of the training interactions; items are numbered after the users."""

    starts: Tensor  # [nodes + 1]: node n's neighbours are neighbours[starts[n]:starts[n + 1]]
    neighbours: Tensor  # [2 * edges]
    ends: Tensor  # [2 * edges]: the node that each of these is a neighbour of
    edges: Tensor  # [2 * edges]: number of the undirected edge, 0 .. edges - 1
    weights: Tensor  # [2 * edges]

    def __init__(self, users: Tensor, items: Tensor, num_users: int, num_items: int):
        super().__init__()
        self.nodes = nodes = num_users + num_items
        users, items = users.long(), items.long() + num_users  # ids may come in 32 bits
        # an edge is there or not: repeated interactions count once; `unique` also sorts by node
        pairs = torch.unique(torch.cat([users * nodes + items, items * nodes + users]))
        ends, neighbours = pairs // nodes, pairs % nodes
        low, high = torch.minimum(ends, neighbours), torch.maximum(ends, neighbours)
        _, edges = torch.unique(low * nodes + high, return_inverse=True)
        starts = F.pad(torch.bincount(ends, minlength=nodes).cumsum(0), (1, 0))
        buffers = {"starts": starts, "neighbours": neighbours, "ends": ends, "edges": edges}
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)  # rebuilt from the data
        ones = torch.ones(len(ends), dtype=torch.float64)
        self.register_buffer("weights", self.normalised(ones).float(), persistent=False)
        self._cut: Any = None

    @property
    def num_edges(self) -> int:
        """Edges, each counted once."""
        return len(self.ends) // 2

    def normalised(self, kept: Tensor) -> Tensor:
        """Weights [2 * edges] of a graph with some edges only: kept [2 * edges] of 0 and 1."""
        share = self._shares(kept)
        return kept * share.index_select(0, self.ends) * share.index_select(0, self.neighbours)

    def _shares(self, kept: Tensor) -> Tensor:
        """1 / sqrt(neighbours) of every node: [nodes]."""
        degrees = torch.zeros(self.nodes, dtype=kept.dtype, device=kept.device)
        return degrees.index_add(0, self.ends, kept).clamp(min=1.0).rsqrt()

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Every node's weighted sum of its neighbours: [nodes, d] -> [nodes, d]."""
        weights = self.weights if weights is None else weights
        return spread(x, self.starts, self.neighbours, weights, self._pieces(x))

    def mean(self, x: Tensor, layers: int) -> Tensor:
        """The mean of x and of what `layers` steps make of it: [nodes, d] -> [nodes, d]."""
        layer = total = x
        for _ in range(layers):
            layer = self(layer)
            total = total + layer
        return total / (layers + 1)

    def _pieces(self, x: Tensor) -> Any:
        """What kernels need of the graph, where there are any; made once."""
        if self._cut is None and x.is_cuda:
            self._cut = cut(self.starts, x)
        return self._cut if x.is_cuda else None
