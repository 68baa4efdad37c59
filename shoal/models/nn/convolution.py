"""Graph convolution with weights by the native core: all layers forward, and all of them back.

    s = M x        y = leaky_relu((s + x) W1 + (s * x) W2 + b), dropped        next x = y

Both products are one, of what stands side by side; what is around them is one pass over memory
each, where torch makes ten forward and more than twenty back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.models.nn.native_graph import Edges, spread_graph, takes_graph
from shoal.models.nn.unit import SHORTEST
from shoal.world.core import load_core

_core = load_core()
SLOPE = 0.2  # of the relu where it is below 0


class Weights(NamedTuple):
    """Of one layer: [out, in] and [out] for sums, [out, in] and [out] for products."""

    sums: Tensor
    sums_bias: Tensor
    products: Tensor
    products_bias: Tensor


class _Made(NamedTuple):
    """What a layer leaves for its gradient."""

    x: Tensor  # [nodes, in]
    spread: Tensor  # [nodes, in]
    sides: Tensor  # [nodes, 2 * in]
    weight: Tensor  # [out, 2 * in]
    y: Tensor  # [nodes, out]
    lengths: Tensor  # [nodes]


def takes_convolution(x: Tensor, drop: float) -> bool:
    """Whether the core can make the layers that begin with x, and is worth it."""
    return takes_graph(x) and drop < 1.0 and not torch.is_autocast_enabled("cpu")


def convolved(
    x: Tensor, edges: Edges, layers: Sequence[Weights], drop: float, keys: Sequence[int]
) -> Tensor:
    """x and the layers after it, those scaled to length 1, side by side: [nodes, sum of widths].

    keys: of the masks of dropout, one for each layer.
    """
    flat = [one for layer in layers for one in layer]
    return _Convolved.apply(x, edges, drop, keys, *flat)


class _Convolved(torch.autograd.Function):
    """`convolved`, on threads of which it does not depend."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, edges: Edges, drop: float, keys: Sequence[int], *flat: Tensor
    ) -> Tensor:
        layers = [Weights(*flat[k : k + 4]) for k in range(0, len(flat), 4)]
        nodes, threads, kept = x.shape[0], torch.get_num_threads(), []
        widths = [x.shape[1], *(layer.sums.shape[0] for layer in layers)]
        out = x.new_empty(nodes, sum(widths))
        out[:, : widths[0]] = x
        place = widths[0]
        for layer, key in zip(layers, keys):
            spread, width = spread_graph(x, edges), x.shape[1]
            sides, lengths = x.new_empty(nodes, 2 * width), x.new_empty(nodes)
            given = spread.data_ptr(), x.data_ptr(), nodes, width
            _core.join_sides(*given, sides.data_ptr(), threads)
            weight = torch.cat([layer.sums, layer.products], 1)
            y, bias = sides @ weight.t(), layer.sums_bias + layer.products_bias
            _core.finish_layer(
                [nodes, y.shape[1], out.shape[1]],
                *(SLOPE, SHORTEST, y.data_ptr(), bias.data_ptr(), key % 2**64, drop),
                *(out.data_ptr() + 4 * place, lengths.data_ptr(), threads),
            )
            kept.append(_Made(x, spread, sides, weight, y, lengths))
            x, place = y, place + y.shape[1]
        ctx.save_for_backward(out, *(tensor for made in kept for tensor in made))
        ctx.of = edges, drop
        return out

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        (edges, drop), (out, *saved) = ctx.of, ctx.saved_tensors
        layers = [_Made(*saved[k : k + 6]) for k in range(0, len(saved), 6)]
        grads, place, threads = given[0].contiguous(), out.shape[1], torch.get_num_threads()
        back: list[Tensor] = []
        of_y: Tensor | None = None
        for made in reversed(layers):
            (nodes, width), of_bias = made.y.shape, made.y.new_empty(made.y.shape[1])
            place -= width
            grad = torch.empty_like(made.y)
            _core.finish_layer_back(
                [nodes, width, out.shape[1]],
                *(SLOPE, SHORTEST),
                [made.y.data_ptr(), out.data_ptr() + 4 * place, made.lengths.data_ptr()],
                [grads.data_ptr() + 4 * place, 0 if of_y is None else of_y.data_ptr()],
                *(drop, grad.data_ptr(), of_bias.data_ptr(), threads),
            )
            of_sums, of_products = (grad.t() @ made.sides).chunk(2, 1)
            back[:0] = [of_sums.contiguous(), of_bias, of_products.contiguous(), of_bias.clone()]
            of_sides, of_spread = grad @ made.weight, torch.empty_like(made.x)
            of_x = torch.empty_like(made.x)
            _core.part_sides(
                *(of_sides.data_ptr(), made.spread.data_ptr(), made.x.data_ptr(), *made.x.shape),
                *(of_spread.data_ptr(), of_x.data_ptr(), threads),
            )
            of_y = spread_graph(of_spread, edges, added=of_x)
        first = grads[:, :place]
        return first if of_y is None else of_y.add_(first), None, None, None, *back
