"""The graph of users and items, and vectors that spread over it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.embedding.pooling import sum_bags


class _Spread(torch.autograd.Function):
    """adjacency @ x for a symmetric adjacency, whose gradient is therefore adjacency @ grad.

    The matrix is in compressed rows; a bag-sum over them is the same product, and on CPUs without
    MKL two to three times faster than torch's sparse matmul.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, starts: Tensor, neighbours: Tensor, weights: Tensor, pieces: Any
    ) -> Tensor:
        ctx.save_for_backward(starts, neighbours, weights)
        ctx.pieces = pieces
        if pieces is not None:  # on a GPU; torch walks a bag alone there, however long it is
            from shoal.models.nn import triton_spread

            return triton_spread.spread(x.contiguous(), pieces, neighbours, weights)
        return sum_bags(x, starts, neighbours, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        back = _Spread.apply(grads[0].contiguous(), *ctx.saved_tensors, ctx.pieces)
        return back, None, None, None, None


class Graph(nn.Module):
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
        made = {"starts": starts, "neighbours": neighbours, "ends": ends, "edges": edges}
        for name, value in made.items():
            self.register_buffer(name, value, persistent=False)  # the data makes it anew
        ones = torch.ones(len(ends), dtype=torch.float64)
        self.register_buffer("weights", self.normalised(ones).float(), persistent=False)
        self._cut: Any = None

    @property
    def num_edges(self) -> int:
        """Edges, each counted once."""
        return len(self.ends) // 2

    def normalised(self, kept: Tensor) -> Tensor:
        """Weights of a graph with some edges only: kept [2 * edges] of 0 and 1 -> likewise."""
        degrees = torch.zeros(self.nodes, dtype=kept.dtype, device=kept.device)
        share = degrees.index_add(0, self.ends, kept).clamp(min=1.0).rsqrt()
        return kept * share.index_select(0, self.ends) * share.index_select(0, self.neighbours)

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Every node's weighted sum of its neighbours: [nodes, d] -> [nodes, d]."""
        weights = self.weights if weights is None else weights
        return _Spread.apply(x, self.starts, self.neighbours, weights, self._pieces(x))

    def _pieces(self, x: Tensor) -> Any:
        """What the kernels need of the graph, where there are any; made once."""
        if not x.is_cuda or x.dtype != torch.float32:
            return None
        if self._cut is None:
            try:
                from shoal.models.nn import triton_spread
            except ImportError:  # torch without Triton
                return None
            self._cut = triton_spread.Pieces.of(self.starts)
        return self._cut
