"""Sequences without their pads: what layers compute, they compute for real places alone.

    history  a b c 0      places of a batch side by side, b * l:  a b c 0 d 0 0 0
             d 0 0 0      tokens, [n]:                            0 1 2   4

What looks at one place (products, norms, dropout) reads packed rows, [n, width]. What looks at
pairs of places reads groups of sequences of like length, each as long as its longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUPS = 8  # of sequences, at most


def pack(x: Tensor, tokens: Tensor) -> Tensor:
    """The rows of tokens: [b, l, ...] -> [n, ...]."""
    return x.flatten(0, 1).index_select(0, tokens)


def spread(x: Tensor, tokens: Tensor, size: int, length: int) -> Tensor:
    """Rows that `pack` gathered at their places, zeros at pads: [n, ...] -> [size, length, ...]."""
    whole = x.new_zeros(size * length, *x.shape[1:])
    return whole.index_copy(0, tokens, x).unflatten(0, (size, length))


def ends_of(pads: Tensor) -> Tensor:
    """One more than the last place that is no pad: bool [b, l] -> int32 [b]."""
    count = torch.arange(1, pads.shape[1] + 1, dtype=torch.int32, device=pads.device)
    return count.masked_fill(pads, 0).amax(1)


@dataclass(frozen=True)
class LengthGroup:
    """Sequences of like length."""

    samples: Tensor  # int64 [g]: their numbers in the batch
    pads: Tensor  # bool [g, m]; m: the longest of them


@dataclass(frozen=True)
class Packed:
    """Where the real places of a batch are, and its groups."""

    length: int  # places of a sequence, pads included
    tokens: Tensor  # int64 [n]: which of all places are real
    groups: list[LengthGroup]
    places: Tensor  # int64 [sum of g * m]: the packed row at each place of the groups; at pads any
    back: Tensor  # int64 [n]: the place of each packed row there

    @classmethod
    def of(cls, pads: Tensor) -> Packed | None:
        """Packs by pads, bool [b, l]; None where a pad comes before an item, or all are pads."""
        length = pads.shape[1]
        lengths = (~pads).sum(1)
        column = torch.arange(length, device=pads.device)
        if not lengths.any() or not torch.equal(pads, column >= lengths.unsqueeze(1)):
            return None
        starts = lengths.cumsum(0) - lengths
        order = torch.argsort(lengths, stable=True)
        groups, places, backs, done = [], [], torch.empty_like(starts), 0
        for samples in order.chunk(min(GROUPS, max(1, len(order) // 16))):
            longest = int(lengths[samples[-1]])
            if longest == 0:
                continue
            own = lengths[samples].unsqueeze(1)
            groups.append(LengthGroup(samples, column[:longest] >= own))
            inside = torch.minimum(column[:longest], (own - 1).clamp(min=0))
            places.append((starts[samples].unsqueeze(1) + inside).view(-1))
            backs[samples] = done + longest * torch.arange(len(samples), device=pads.device)
            done += len(places[-1])
        tokens = (~pads).view(-1).nonzero().view(-1)
        back = backs[tokens // length] + tokens % length
        # a sequence of pads alone, at the end of all, has no row: any other will do
        every = torch.cat(places).clamp(max=len(tokens) - 1)
        return cls(length, tokens, groups, every, back)


@dataclass(frozen=True)
class RaggedRows:
    """Where the real places of a batch are, for a kernel that finds sequences among packed rows."""

    length: int  # places of a sequence, pads included
    tokens: Tensor  # int64 [n], ascending: which of all places are real; more of the last are spare
    starts: Tensor  # int64 [b]: the first row of each sequence
    ends: Tensor  # int32 [b]: how many it has

    @classmethod
    def of(cls, pads: Tensor, tokens: Tensor) -> RaggedRows:
        """Packs by pads, bool [b, l], which come after the items."""
        ends = (~pads).sum(1)
        return cls(pads.shape[1], tokens, ends.cumsum(0) - ends, ends.int())


def rows_of(tokens: Tensor, wanted: Tensor) -> Tensor:
    """The packed rows of places that are real: [n], counted in [b * l] -> [n]."""
    return torch.searchsorted(tokens, wanted)
