"""Vectors that spread over a graph, and losses of its nodes, by the native core.

Products with a graph are the core's on ARM, where torch takes half as long again and more, and two
layers take as many passes over memory as it takes operations. The loss of nodes is the core's
everywhere: torch would copy their vectors, and write a gradient for each copy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.embedding.softmax.native import has_neon, is_plain
from shoal.world.core import load_core

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


def takes_placed(rows: Tensor, places: Tensor) -> bool:
    """Whether the core can make the loss of pairs: rows [n, d], places [3, b] in them."""
    if _core is None or rows.dim() != 2 or not is_plain(rows) or torch.compiler.is_compiling():
        return False
    right = places.dim() == 2 and places.shape[0] == 3 and places.dtype == torch.int64
    return right and places.is_cpu and places.is_contiguous()


def placed_pair_loss(rows: Tensor, places: Tensor) -> tuple[float, Tensor]:
    """As `native.pair_loss` of the rows that three lists of places name: [n, d], [3, b]."""
    slopes = torch.empty(places.shape[1])
    loss = _core.placed_pair_loss(*_placed(rows, places), slopes.data_ptr(), _threads(places))
    return loss, slopes


def placed_pair_gradients(rows: Tensor, places: Tensor, slopes: Tensor, scale: float) -> Tensor:
    """The gradients of all rows, times scale: [n, d]."""
    if slopes.shape != places.shape[1:] or not is_plain(slopes):
        raise ValueError(f"{places.shape[1]} pairs have as many slopes")
    out = torch.empty_like(rows)
    made = slopes.data_ptr(), scale, out.data_ptr(), _threads(places)
    _core.placed_pair_gradients(*_placed(rows, places), *made)
    return out


def _placed(rows: Tensor, places: Tensor) -> tuple[int, ...]:
    if not takes_placed(rows, places):
        raise ValueError(f"pairs of rows {list(rows.shape)} at places {list(places.shape)}")
    return rows.data_ptr(), *rows.shape, places.data_ptr(), places.shape[1]


def _threads(places: Tensor) -> int:
    """A thread for every thousand pairs or two."""
    return max(1, min(torch.get_num_threads(), places.shape[1] // 1024))
