"""Graphs with relations: edges by the node that they start from, and walks along them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.kernels.bags import sum_bags


class _Mixed(torch.autograd.Function):
    """Sums of tails' vectors by head; backward sums heads' gradients by tail. Both are bags."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor | None, tails: Tensor, starts: Tensor, *back: Tensor
    ) -> Tensor:
        order, heads, starts_back = back
        turned = None if weights is None else weights[order]
        ctx.save_for_backward(turned, heads, starts_back)
        return sum_bags(x, starts, tails, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, heads, starts = ctx.saved_tensors
        return sum_bags(grads[0].contiguous(), starts, heads, weights), *[None] * 6


class Edges(nn.Module):
    """Edges from heads to tails, each of a relation; sorted by head."""

    starts: Tensor  # [nodes + 1]: node n's edges are number starts[n] to starts[n + 1] - 1
    heads: Tensor  # [edges]
    relations: Tensor
    tails: Tensor
    back: Tensor  # [edges]: their order by tail
    starts_back: Tensor  # likewise

    def __init__(
        self, heads: Tensor, relations: Tensor, tails: Tensor, nodes: int, ends: int | None = None
    ):
        """nodes: heads are below it; ends: tails are below it, where those are others."""
        super().__init__()
        self.nodes = nodes
        order = torch.argsort(heads, stable=True)
        made = {"heads": heads[order], "relations": relations[order], "tails": tails[order]}
        made["starts"] = F.pad(torch.bincount(heads, minlength=nodes).cumsum(0), (1, 0))
        made["back"] = torch.argsort(made["tails"], stable=True)
        met = torch.bincount(tails, minlength=nodes if ends is None else ends)
        made["starts_back"] = F.pad(met.cumsum(0), (1, 0))
        for name, value in made.items():
            self.register_buffer(name, value, persistent=False)  # the data makes it anew

    def __len__(self) -> int:
        return len(self.heads)

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

        weights [edges] learn nothing. On a CPU no vector is made for each edge.
        """
        if x.is_cpu:
            back = self.back, self.heads[self.back], self.starts_back
            return _Mixed.apply(x, weights, self.tails, self.starts, *back)
        near = F.embedding(self.tails, x)
        return self.total(near if weights is None else near * weights.unsqueeze(1))
