"""Attention with dropout, and a residual sum with its dropout and norm: one kernel each on a GPU.

The plain forms are those of models/nn/transformer.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.kernels.dropout import makes_masks


def attend(
    packed: Tensor,
    pads: Tensor | None,
    ends: Tensor | None,
    p: float,
    key: Tensor,
    first: int,
    causal: bool,
    hidden: float,
) -> Tensor:
    """Self-attention with dropout, where `takes_attention`: [b, l, 3, heads, d] -> [b, l, width].

    pads, bool [b, l]: positions that no other may see; hidden: what is added to their scores.
    ends, int32 [b]: where a sequence ends; behind that nothing is read, and zeros are written.
    """
    from shoal.kernels.gpu.attention import Attended

    size, length = packed.shape[:2]
    rows = packed.flatten(0, 1)
    attended = Attended.apply(rows, size, length, pads, None, ends, p, key, first, causal, hidden)
    return attended.unflatten(0, (size, length))


def attend_ragged(
    packed: Tensor,
    length: int,
    starts: Tensor,
    ends: Tensor,
    p: float,
    key: Tensor,
    first: int,
    causal: bool,
    hidden: float,
) -> Tensor:
    """Self-attention of sequences one after the other: [n, 3, heads, d] -> [n, width].

    Sequence i, of `length` places at most, has the ends[i] rows from starts[i] on: int32 and int64
    [b]. Masks are those of sequences that all have `length` places.
    """
    from shoal.kernels.gpu.attention import Attended

    size = starts.shape[0]
    return Attended.apply(packed, size, length, None, starts, ends, p, key, first, causal, hidden)


def takes_attention(x: Tensor, width: int, p: float) -> bool:
    """Whether there is a kernel of attention with dropout p over heads so wide, for such an x."""
    widest = 128  # tiles of wider heads do not fit
    return 0.0 < p < 1.0 and width <= widest and makes_masks(x)


def takes_norm(x: Tensor, change: Tensor, weight: Tensor, p: float) -> bool:
    """Whether there is a kernel of a residual sum with dropout p and the norm behind it."""
    widest = 1024  # columns of a row
    plain = x.dtype == weight.dtype == torch.float32 and x.shape[-1] <= widest
    return plain and p < 1.0 and makes_masks(change)


def add_and_norm(
    x: Tensor,
    change: Tensor,
    norm: nn.LayerNorm,
    p: float,
    key: Tensor,
    first: int,
    rows: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """x + dropout(change) and its layer norm, where `takes_norm`: as x each, [..., width]."""
    from shoal.kernels.gpu.norm import AddedAndNormed

    return AddedAndNormed.apply(x, change, norm.weight, norm.bias, norm.eps, p, key, first, rows)
