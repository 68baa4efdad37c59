"""Steps over columns: samples stand last, so that every pass is one over long rows of memory.

That is what a CPU is quick at, however narrow the vectors of samples are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from shoal.models.nn import native


def pair_attention(
    columns: Tensor, weight: Tensor, bias: Tensor, query: Tensor, out: Tensor
) -> tuple[Tensor, Tensor]:
    """Of all pairs i < j of features, with p the product of their vectors, element by element:

    <query, relu(weight p + bias)> and <out, p>
    [n, d, b], [o, d], [o], [o], [d] -> [n * (n - 1) / 2, b] each
    """
    given = columns, weight, bias, query, out
    if not torch.compiler.is_compiling() and native.takes_attention(*given):
        return _PairAttention.apply(*given)
    each = [columns[i : i + 1] * columns[i + 1 :] for i in range(len(columns) - 1)]
    pairs = torch.cat(each)  # [pairs, d, b]
    return query @ (weight @ pairs + bias.unsqueeze(1)).relu(), out @ pairs


class _PairAttention(torch.autograd.Function):
    """pair_attention by the native core: a pair's steps follow each other in the cache."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*given)
        return native.pair_attention(*given)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return native.pair_attention_back((grads[0], grads[1]), *ctx.saved_tensors)


def features_attend(x: Tensor, weight: Tensor, heads: int) -> Tensor:
    """What features become that look at each other: relu([heads of attention] + the feature).

    weight makes queries, keys, values and the feature itself, each `heads` times as wide as a head:
    [b, n, d], [4 * width, d] -> [b, n, width]
    """
    if not torch.compiler.is_compiling():
        if native.takes_attend(x, weight):
            return _AttendByCore.apply(x, weight, heads)
        if x.is_cpu:
            return _Attend.apply(x.permute(2, 1, 0).contiguous(), weight, heads).permute(2, 1, 0)
    parts = (x @ weight.T).unflatten(2, (4, heads, -1)).permute(2, 0, 3, 1, 4)
    query, key, value, same = parts  # [b, heads, n, width / heads] each
    return (
        (scaled_dot_product_attention(query, key, value) + same).transpose(1, 2).flatten(2).relu()
    )


class _AttendByCore(torch.autograd.Function):
    """features_attend by the native core: what a few samples make stays in the cache."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, heads: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.heads = heads
        return native.attend(x, weight, heads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        return *native.attend_back(x, weight, ctx.heads, grads[0]), None


class _Attend(torch.autograd.Function):
    """features_attend of columns: [d, n, b], [4 * width, d] -> [width, n, b].

    Attention [heads, n, n, b] is products of single features: there are few of them, and samples
    many.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, heads: int) -> Tensor:
        width = len(weight) // (4 * heads)
        parts = (weight @ x.flatten(1)).view(4, heads, width, *x.shape[1:])
        query, key, value, same = parts  # [heads, c, n, b] each
        ctx.scale = width**-0.5
        shares = _outer(query, key).mul_(ctx.scale).softmax(2)  # [heads, n, n of keys, b]
        out = same.clone()
        for j in range(x.shape[1]):
            out.addcmul_(shares[:, None, :, j], value[:, :, j, None])
        ctx.save_for_backward(x, weight, parts, shares, out.relu_())
        return out.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, (query, key, value, _), shares, out = ctx.saved_tensors
        found = torch.empty(4, *out.shape)
        of_query, of_key, of_value, grad = found
        torch.ops.aten.threshold_backward.grad_input(grads[0].view_as(out), out, 0, grad_input=grad)
        of_asked = torch._softmax_backward_data(_outer(grad, value), shares, 2, x.dtype)
        of_asked.mul_(ctx.scale)
        for k in range(x.shape[1]):
            _add_product(of_query, of_asked[:, None, :, k], key[:, :, k, None], k == 0)
            _add_product(of_key, of_asked[:, None, k], query[:, :, k, None], k == 0)
            _add_product(of_value, shares[:, None, k], grad[:, :, k, None], k == 0)
        rows = found.view(len(weight), x.shape[1:].numel())
        return (weight.T @ rows).view_as(x), rows @ x.flatten(1).T, None


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Dot products of all features with all: [heads, c, n, b] twice -> [heads, n, n, b]."""
    heads, width, number, size = left.shape
    found = torch.empty(heads, number, number, size)
    for c in range(width):
        _add_product(found, left[:, c, :, None], right[:, c, None], c == 0)
    return found


def _add_product(to: Tensor, a: Tensor, b: Tensor, first: bool) -> None:
    """to + a * b, in place; the first of them is written over what was there."""
    if first:
        torch.mul(a, b, out=to)
    else:
        to.addcmul_(a, b)
