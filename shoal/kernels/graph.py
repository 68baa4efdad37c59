"""Vectors that spread over a graph: products with its matrix, which is symmetric.

By the native core on ARM, where torch takes half as long again and more, and two layers take as
many passes over memory as it takes operations; by Triton on a GPU, where torch walks a node's
neighbours alone, however many there are; else sums of bags.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.kernels.bags import sum_bags
from shoal.kernels.core import load_core
from shoal.kernels.machine import has_neon, is_plain, takes_triton

_core = load_core()


class Edges(NamedTuple):
    """A graph as the core takes it: shares[i] * shares[j] where i and j are neighbours."""

    starts: Tensor  # [nodes + 1], int64: node n's are neighbours[starts[n] : starts[n + 1]]
    neighbours: Tensor  # int32
    shares: Tensor  # [nodes], float32


def takes_graph(x: Tensor) -> bool:
    """Whether the core can spread vectors [nodes, d] and is worth it."""
    return has_neon() and is_plain(x) and x.dim() == 2 and not torch.compiler.is_compiling()


def spread_graph(
    x: Tensor, edges: Edges, layers: int = 1, scale: float = 1.0, added: Tensor | None = None
) -> Tensor:
    """`layers` times x = added + M x, then times scale: [nodes, d]; M is the matrix of the graph.

    Where x itself is added, that is the sum of all layers, x among them.
    """
    starts, neighbours, shares = edges
    kinds = starts.dtype, neighbours.dtype, shares.dtype
    if not takes_graph(x) or kinds != (torch.int64, torch.int32, torch.float32):
        raise ValueError(f"a graph of {kinds} and vectors {list(x.shape)} {x.dtype}")
    if not starts.shape[0] - 1 == shares.shape[0] == x.shape[0]:
        raise ValueError(f"{shares.shape[0]} nodes do not fit vectors {list(x.shape)}")
    if added is not None and (added.shape != x.shape or not is_plain(added)):
        raise ValueError(f"vectors {list(added.shape)} cannot be added to {list(x.shape)}")
    out = torch.empty_like(x)
    nodes = starts.data_ptr(), neighbours.data_ptr(), neighbours.numel(), shares.data_ptr()
    given = x.shape[0], x.data_ptr(), 0 if added is None else added.data_ptr(), x.shape[1]
    made = layers, scale, out.data_ptr(), torch.get_num_threads()
    _core.spread_graph(*nodes, *given, *made)
    return out


def spread_layers(x: Tensor, edges: Edges, layers: int, mean: bool) -> Tensor:
    """What so many layers make of x, or the mean of x and all layers, where `takes_graph`."""
    return _Layers.apply(x, edges, layers, mean)


class _Layers(torch.autograd.Function):
    """The powers of a symmetric matrix are symmetric: the gradient is the same again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, edges: Edges, layers: int, mean: bool) -> Tensor:
        ctx.of = edges, layers, mean
        scale = 1.0 / (layers + 1) if mean else 1.0
        return spread_graph(x, edges, layers, scale, x if mean else None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _Layers.apply(grads[0].contiguous(), *ctx.of), None, None, None


def cut(starts: Tensor, x: Tensor) -> Any:
    """What kernels on a GPU need of a graph beside starts [nodes + 1], to be kept; None: no kernel.

    x [nodes, d]: the vectors.
    """
    if x.dtype != torch.float32 or not takes_triton(x):
        return None
    from shoal.kernels.gpu.spread import Pieces

    return Pieces.of(starts)


def spread(x: Tensor, starts: Tensor, neighbours: Tensor, weights: Tensor, pieces: Any) -> Tensor:
    """Every node's weighted sum of its neighbours, one layer: [nodes, d] -> [nodes, d].

    Node n's neighbours are neighbours[starts[n] : starts[n + 1]], weights likewise; the matrix must
    be symmetric. pieces: see `cut`.
    """
    return _Spread.apply(x, starts, neighbours, weights, pieces)


class _Spread(torch.autograd.Function):
    """A bag-sum over compressed rows is the same product as torch's sparse matmul, and on CPUs
    without MKL two to three times faster."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, starts: Tensor, neighbours: Tensor, weights: Tensor, pieces: Any
    ) -> Tensor:
        ctx.save_for_backward(starts, neighbours, weights)
        ctx.pieces = pieces
        if pieces is None:
            return sum_bags(x, starts, neighbours, weights)
        from shoal.kernels.gpu.spread import spread as spread_pieces

        return spread_pieces(x.contiguous(), pieces, neighbours, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        back = _Spread.apply(grads[0].contiguous(), *ctx.saved_tensors, ctx.pieces)
        return back, None, None, None, None
