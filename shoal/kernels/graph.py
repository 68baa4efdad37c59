"""Vectors that spread over a graph: products with its matrix, which is symmetric.

By Triton on a GPU, where torch walks a node's neighbours alone, however many there are; else by
sums of bags.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.kernels.bags import sum_bags
from shoal.kernels.machine import runs_triton


def cut(starts: Tensor, x: Tensor) -> Any:
    """What kernels on a GPU need of a graph beside starts [nodes + 1], to be kept; None: no kernel.

    x [nodes, d]: the vectors.
    """
    if x.dtype != torch.float32 or not (x.is_cuda and runs_triton()):
        return None
    from shoal.kernels.gpu.spread import Pieces

    return Pieces.of(starts)


def spread(x: Tensor, starts: Tensor, neighbours: Tensor, weights: Tensor, pieces: Any) -> Tensor:
    """Every node's weighted sum of its neighbours, one layer: [nodes, d] -> [nodes, d].

    Node n's neighbours are neighbours[starts[n] : starts[n + 1]], their weights stand at the
    same places; the matrix must be symmetric. pieces: see `cut`.
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
