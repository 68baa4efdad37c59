"""Graphs with relations: edges by the node that they start from, and walks along them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Edges(nn.Module):
    """Edges from heads to tails, each of a relation; sorted by head."""

    starts: Tensor  # [nodes + 1]: node n's edges are number starts[n] to starts[n + 1] - 1
    heads: Tensor  # [edges]
    relations: Tensor
    tails: Tensor

    def __init__(self, heads: Tensor, relations: Tensor, tails: Tensor, nodes: int):
        """nodes: heads are below it."""
        super().__init__()
        self.nodes = nodes
        order = torch.argsort(heads, stable=True)
        buffers = {"heads": heads[order], "relations": relations[order], "tails": tails[order]}
        buffers["starts"] = F.pad(torch.bincount(heads, minlength=nodes).cumsum(0), (1, 0))
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)  # rebuilt from the data

    def __len__(self) -> int:
        return len(self.heads)

    def degrees(self) -> Tensor:
        """How many edges every head has, at least 1: [nodes, 1]."""
        return self.starts.diff().clamp(min=1).unsqueeze(1)

    def random(self, nodes: Tensor) -> Tensor:
        """An edge of each node, drawn by torch's generator; -1 where it has none."""
        degrees = self.starts[nodes + 1] - self.starts[nodes]
        drawn = (torch.rand(nodes.shape, dtype=torch.float64) * degrees).long()
        return torch.where(degrees > 0, self.starts[nodes] + drawn, -1)

    def shares(self, scores: Tensor) -> Tensor:
        """Softmax of scores [edges] over the edges of every head."""
        most = torch.full((self.nodes,), -torch.inf, device=scores.device)
        most = most.scatter_reduce(0, self.heads, scores, "amax")
        powers = (scores - most[self.heads]).exp()
        return powers / self.total(powers)[self.heads]

    def total(self, values: Tensor) -> Tensor:
        """Sums over the edges of every head: [edges, ...] -> [nodes, ...]."""
        zeros = values.new_zeros(self.nodes, *values.shape[1:])
        return zeros.index_add(0, self.heads, values)

    def mixed(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Sums over the edges of every head of its tails' vectors: [ends, d] -> [nodes, d].

        weights [edges] learn nothing. No vector is made for each edge.
        """
        return F.embedding_bag(
            self.tails,
            x,
            self.starts,
            mode="sum",
            per_sample_weights=weights,
            include_last_offset=True,
        )
