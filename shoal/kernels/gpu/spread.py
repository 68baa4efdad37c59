"""Vectors that spread over a graph, on a GPU: out[n] = sum of weight × x over n's neighbours.

A node with thousands of neighbours would keep one program busy while others rest. So neighbours are
cut into pieces of at most PIECE; every piece is summed by itself, then those of each node, in the
same order always.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 32


@dataclass(frozen=True)
class Pieces:
    """Neighbours of all nodes, cut: piece p is places begins[p] to ends[p] of the list of them."""

    begins: Tensor  # [pieces] int64
    ends: Tensor  # [pieces] int64
    firsts: Tensor  # [nodes + 1] int64: where the pieces of each node begin

    @classmethod
    def of(cls, starts: Tensor) -> Pieces:
        """Cuts the neighbours of nodes that begin at starts [nodes + 1]."""
        counts = (starts.diff() + PIECE - 1) // PIECE
        firsts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        node = torch.arange(len(counts), device=starts.device).repeat_interleave(counts)
        number = torch.arange(len(node), device=starts.device) - firsts[node]
        begins = starts[node] + PIECE * number
        return cls(begins, torch.minimum(begins + PIECE, starts[node + 1]), firsts)


# fmt: off
@triton.jit
def _sum_pieces(x, begins, ends, neighbours, weights, parts, count, DIM: tl.constexpr,
                WIDTH: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr):
    piece = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = piece < count
    begin = tl.load(begins + piece, mask=here, other=0)
    end = tl.load(ends + piece, mask=here, other=0)
    place = begin[:, None] + tl.arange(0, PIECE)[None, :]
    inside = place < end[:, None]
    node = tl.load(neighbours + place, mask=inside, other=0)
    weight = tl.load(weights + place, mask=inside, other=0.0)
    column = tl.arange(0, WIDTH)
    wide = (column < DIM)[None, None, :]
    value = tl.load(x + node[:, :, None] * DIM + column[None, None, :],
                    mask=inside[:, :, None] & wide, other=0.0)
    total = tl.sum(value * weight[:, :, None], 1)
    tl.store(parts + piece[:, None].to(tl.int64) * DIM + column[None, :], total,
             mask=here[:, None] & (column < DIM)[None, :])


@triton.jit
def _sum_nodes(parts, firsts, out, count, DIM: tl.constexpr, WIDTH: tl.constexpr,
               BLOCK: tl.constexpr):
    node = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = node < count
    begin = tl.load(firsts + node, mask=here, other=0)
    end = tl.load(firsts + node + 1, mask=here, other=0)
    column = tl.arange(0, WIDTH)
    wide = (column < DIM)[None, :]
    total = tl.zeros([BLOCK, WIDTH], tl.float32)
    for k in range(0, tl.max(end - begin, 0)):
        piece = begin + k
        inside = (piece < end)[:, None] & wide
        total += tl.load(parts + piece[:, None] * DIM + column[None, :], mask=inside, other=0.0)
    tl.store(out + node[:, None].to(tl.int64) * DIM + column[None, :], total,
             mask=here[:, None] & wide)
# fmt: on


def spread(x: Tensor, pieces: Pieces, neighbours: Tensor, weights: Tensor) -> Tensor:
    """[nodes, d] -> [nodes, d], float32 and contiguous."""
    dim, count = x.shape[1], len(pieces.begins)
    width = triton.next_power_of_2(dim)
    out, parts = torch.empty_like(x), x.new_empty(count, dim)
    if count:
        block = max(1, 256 // width)
        _sum_pieces[(triton.cdiv(count, block),)](
            x,
            pieces.begins,
            pieces.ends,
            neighbours,
            weights,
            parts,
            count,
            DIM=dim,
            WIDTH=width,
            BLOCK=block,
            PIECE=PIECE,
        )
    block = max(1, 1024 // width)
    _sum_nodes[(triton.cdiv(len(x), block),)](
        parts, pieces.firsts, out, len(x), DIM=dim, WIDTH=width, BLOCK=block
    )
    return out
