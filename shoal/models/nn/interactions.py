"""How the features of a sample meet each other: sums of dot products, single ones, crosses."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from shoal.kernels.dots import dots_beside, takes_dots
from shoal.models.nn.mlp import begin_by_width


def sum_of_dots(vectors: Tensor) -> Tensor:
    """The dot products of all pairs i < j, summed: [b, n, d] -> [b]."""
    return sum_of_products(vectors).sum(1)


def sum_of_products(vectors: Tensor) -> Tensor:
    """The products of all pairs i < j, element by element, summed: [b, n, d] -> [b, d].

    sum over pairs of v_i * v_j  =  ((sum of v_i)^2 - sum of v_i^2) / 2, so n steps, not n^2.
    """
    if vectors.requires_grad and not torch.compiler.is_compiling():
        return _Pairs.apply(vectors)
    return 0.5 * (vectors.sum(1).square() - vectors.square().sum(1))


class _Pairs(torch.autograd.Function):
    """sum_of_products; its gradient of v_i is what the other vectors sum up to: two passes."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        total = vectors.sum(1)
        ctx.save_for_backward(vectors, total)
        return 0.5 * (total * total - (vectors * vectors).sum(1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        vectors, total = ctx.saved_tensors
        return (total.unsqueeze(1) - vectors).mul_(grads[0].unsqueeze(1))


def sum_of_facing(vectors: Tensor) -> Tensor:
    """Dot products of i's vector for j with j's for i, of all pairs i < j, summed.

    [b, n, n * d], of every feature the vectors for all n side by side -> [b]
    """
    if vectors.is_cpu and not torch.compiler.is_compiling():
        return _Facing.apply(vectors)
    number = vectors.shape[1]
    each = vectors.unflatten(2, (number, -1))  # [b, n, n, d]
    met = (each * each.transpose(1, 2)).sum(-1)  # both halves are the same
    return 0.5 * (met.sum((1, 2)) - met.diagonal(dim1=1, dim2=2).sum(1))


class _Facing(torch.autograd.Function):
    """sum_of_facing; what every vector faces is laid beside it, and is its gradient too."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        rows = vectors.transpose(0, 1).contiguous()  # as features that are apart lie: no copy
        number, size, width = rows.shape
        chunks = rows.view(number * size * number, width // number)
        facing = chunks.index_select(0, _swapped(number, size))
        facing = facing.view(number, size, number, width // number)
        facing.diagonal(dim1=0, dim2=2).zero_()
        facing = facing.flatten(2)  # [n, b, n * d]
        ctx.save_for_backward(facing)
        return (rows * facing).sum(2).sum(0).mul_(0.5)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (facing,) = ctx.saved_tensors
        return (facing * grads[0].unsqueeze(1)).transpose(0, 1)


@lru_cache(maxsize=4)
def _swapped(number: int, size: int) -> Tensor:
    """Of [n, b, n], numbered one after the other, the numbers with both n swapped: flat."""
    every = torch.arange(number * size * number).view(number, size, number)
    return every.transpose(0, 2).reshape(-1)


class Dots(nn.Module):
    """The dot products of all pairs i > j, each by itself: [b, n, d] -> [b, n * (n - 1) / 2]."""

    lower: Tensor

    def __init__(self, n: int):
        super().__init__()
        rows, columns = torch.tril_indices(n, n, -1).unbind()
        self.register_buffer("lower", rows * n + columns, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        every = torch.bmm(vectors, vectors.transpose(1, 2))  # [b, n, n]
        return every.flatten(1).index_select(1, self.lower)

    def beside(self, first: Tensor, vectors: Tensor) -> Tensor:
        """[first, dots of first and all vectors]: [b, d], [b, n - 1, d] -> [b, d + pairs].

        On a GPU by one kernel, with zeros behind for `mlp.Linear` to read.
        """
        if takes_dots(vectors):
            return dots_beside(first, vectors)
        return torch.cat([first, self(torch.cat([first.unsqueeze(1), vectors], 1))], 1)


class Cross(nn.Module):
    """Cross layers x <- x0 * (W x + b) + x, each one degree more: [b, width] -> [b, width].

    With `low_rank` r, W = U V of [width, r] and [r, width]. gated: the product is multiplied by
    sigmoid(G x) as well.
    """

    def __init__(self, width: int, layers: int, low_rank: int | None = None, gated: bool = False):
        super().__init__()
        self.layers = nn.ModuleList(_square(width, low_rank) for _ in range(layers))
        self.gates = nn.ModuleList(_square(width, low_rank) for _ in range(layers * gated))
        begin_by_width(self)

    def forward(self, first: Tensor) -> Tensor:
        x = first
        for number, layer in enumerate(self.layers):
            made = layer(x)
            if self.gates:
                made = made * self.gates[number](x).sigmoid()
            x = torch.addcmul(x, first, made)
        return x


def _square(width: int, low_rank: int | None) -> nn.Module:
    if low_rank is None:
        return nn.Linear(width, width)
    down, up = nn.Linear(width, low_rank, bias=False), nn.Linear(low_rank, width)
    return nn.Sequential(down, up)
