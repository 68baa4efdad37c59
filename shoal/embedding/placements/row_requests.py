"""The requests of a rank to the owners of a table's rows: distinct rows, or sums of bag pieces.

    bags of ids          7 3 3 9 | 7 0      (0 is padding: it never travels)

    DistinctRows   keys      3 9 | 7          ranks 0 and 1; rows come back in the order of the keys
                   inverse   2 0 0 1 | 2 3    then a row of zeros

    BagPieces      keys      3 3 9 | 7 7      what a rank holds of a bag is a piece of it
                   lengths   3 | 1 1          of the pieces: one sum comes back for each
                   inverse   0 1 | 2          the pieces of each bag

Rows of ids that repeat travel once, as distinct rows. For long bags of ids that do not repeat, only
sums travel. The requester counts the bytes of both forms and takes the smaller; the owner reads the
form from the head of each message. Gradients return the same way: one for each row or each sum.
Servers are asked for distinct rows (shoal/ps/worker/transfer.py). Vectors
travel in the precision of strategy.wire_dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.embedding.rows.bags import Bags, join_bags
from shoal.embedding.rows.placement import Sharding
from shoal.kernels.distinct_ids import code_map, distinct, group_by

WORD = 8  # bytes; a message to an owner is int64


@dataclass(frozen=True)
class Head:
    """The header of a message to an owner: how many vectors it requests, by how many ids."""

    vectors: int
    ids: int
    pooled: bool = False  # whether a vector is a sum over a piece of a bag
    weighted: bool = False

    @property
    def words(self) -> int:
        """The length of the message in int64 words."""
        lengths = -(-self.vectors // 2) if self.pooled else 0
        return lengths + self.ids + (-(-self.ids // 2) if self.weighted else 0)

    def numbers(self) -> list[int]:
        """The head as integers, which travel ahead of the message."""
        return [self.vectors, self.ids, self.pooled + 2 * self.weighted]

    @classmethod
    def read(cls, vectors: int, ids: int, kind: int) -> Head:
        """The head from its integers (see `numbers`)."""
        return cls(vectors, ids, bool(kind & 1), bool(kind & 2))

    def parse(self, words: Tensor) -> tuple[Tensor, Bags | None]:
        """The ids of a message, and their bags if sums are requested (None: rows are)."""
        if not self.pooled:
            return words, None
        lengths, ids, weights = words.split(
            [-(-self.vectors // 2), self.ids, self.words - self.ids - -(-self.vectors // 2)]
        )
        ends = lengths.view(torch.int32)[: self.vectors].long().cumsum(0)
        bag_weights = weights.view(torch.float32)[: self.ids] if self.weighted else None
        return ids, Bags(F.pad(ends, (1, 0)), bag_weights)


HEAD = len(Head(0, 0).numbers())


class RowRequest:
    """What a process requests of the owners of one table's rows: of ranks, or of servers.

    Vectors are grouped by owner: the first counts[0] are those of owner 0. everyone: each owner
    holds all rows, and all counts are of the same vectors.
    """

    counts: list[int]
    everyone = False

    def part_of(self, owner: int) -> slice:
        """The slice of the vectors that an owner sends."""
        start = 0 if self.everyone else sum(self.counts[:owner])
        return slice(start, start + self.counts[owner])


class DistinctRows(RowRequest):
    """A row for each distinct id of one table, and where each id stands among them."""

    def __init__(self, sharding: Sharding, ids: Tensor):
        self.sharding, self.everyone = sharding, sharding.everyone
        if sharding.grows:
            self._group_growing(ids)
            return
        codes = sharding.codes(ids)
        assert sharding.table.rows is not None
        rows = sharding.table.rows
        self._codes, self.inverse = distinct(codes, rows + 1)
        self._place: Tensor | None = None
        has_padding = sharding.table.padding is not None and len(self._codes) > 0
        self.padded = has_padding and int(self._codes[-1]) == rows
        keys = self._codes[: len(self._codes) - self.padded]
        if sharding.everyone:
            self.keys, self.counts = keys, [len(keys)] * sharding.size
            return
        bounds = torch.tensor(sharding.bounds, device=keys.device)
        cuts = torch.searchsorted(keys, bounds).tolist()
        self.counts = [b - a for a, b in pairwise(cuts)]
        sizes = torch.tensor(self.counts, device=keys.device)
        self.keys = keys - torch.repeat_interleave(bounds[:-1], sizes)

    def _group_growing(self, ids: Tensor) -> None:
        """Group the ids of a growing table, any 64-bit ones: sorted, then regrouped by owner."""
        sharding, size = self.sharding, self.sharding.size
        self._codes, inverse = torch.unique(ids, return_inverse=True)
        owners = sharding.owners(self._codes)
        order = owners.argsort(stable=True)
        self._place = torch.empty_like(order)
        self._place[order] = torch.arange(len(order), device=order.device)
        counts = torch.bincount(owners, minlength=size + 1).tolist()
        self.padded = counts[size] > 0
        self.inverse = self._place[inverse]
        self.keys = self._codes[order][: len(order) - self.padded]
        self.counts = [len(self.keys)] * size if sharding.everyone else counts[:size]

    def head(self, rank: int) -> Head:
        """The head of the message to an owner."""
        return Head(self.counts[rank], self.counts[rank])

    def message(self, rank: int) -> list[Tensor]:
        """The message to an owner: the ids whose rows are requested."""
        return [self.keys_of(rank)]

    def keys_of(self, rank: int) -> Tensor:
        """The ids that go to an owner."""
        return self.keys[self.part_of(rank)]

    def find(self, ids: Tensor) -> tuple[Tensor, bool]:
        """The place of each id, and whether any id is missing (its place then means nothing)."""
        if len(self._codes) == 0:
            return torch.zeros_like(ids), ids.numel() > 0
        codes = ids if self.sharding.grows else self.sharding.codes(ids)
        if not self.sharding.grows:
            if self._place is None:  # built on first use: most lookups are of the batch's fields
                limit = (self.sharding.table.rows or 0) + 1
                numbers = torch.arange(len(self._codes), device=ids.device)
                self._place = code_map(self._codes, limit, numbers)
            places = self._place[codes]
            return places, bool((places < 0).any())
        places = torch.searchsorted(self._codes, codes).clamp(max=len(self._codes) - 1)
        missing = bool((self._codes[places] != codes).any())
        assert self._place is not None
        return self._place[places], missing


class BagPieces(RowRequest):
    """A sum for each piece of a bag: ids of one table's bags by owner, and the pieces of each bag.

    Counts are computed at once; ids are sorted only when they are sent, which is most of the work.
    """

    def __init__(self, sharding: Sharding, ids: Tensor, bags: Bags):
        self.sharding, self.everyone = sharding, sharding.everyone
        size, num_bags = sharding.size, len(bags)
        self.weighted = bags.weights is not None
        self._weights = bags.weights
        self._owners, self._codes = sharding.assigned(ids)
        numbers = self._owners * num_bags + bags.bag_of(len(ids))
        lengths = torch.bincount(numbers, minlength=(size + 1) * num_bags)
        lengths = lengths[: size * num_bags]  # without the padding
        self._lengths = lengths.view(size, num_bags)  # ids of each piece; 0: no such piece
        self._there = self._lengths > 0
        self.counts, self.ids = self._there.sum(1).tolist(), self._lengths.sum(1).tolist()
        if sharding.everyone:  # whose ids go to each owner
            self.counts, self.ids = self.counts[:1] * size, self.ids[:1] * size

    @property
    def num_vectors(self) -> int:
        """The number of requested sums."""
        return self.counts[0] if self.sharding.everyone else sum(self.counts)

    def head(self, rank: int) -> Head:
        """The head of the message to an owner."""
        return Head(self.counts[rank], self.ids[rank], True, self.weighted)

    def message(self, rank: int) -> list[Tensor]:
        """The message to an owner, as int64 words: lengths of pieces, ids, weights."""
        owner = 0 if self.sharding.everyone else rank
        lengths = self._lengths[owner][self._there[owner]]
        words = [_words(lengths.int()), self.keys_of(rank)]
        if self._weights is None:
            return words
        return [*words, _words(self._weights[self._order[self._ids_of(rank)]])]

    def keys_of(self, rank: int) -> Tensor:
        """The ids that go to an owner, as keys of its engine."""
        codes = self._codes[self._order[self._ids_of(rank)]]
        return codes - self.sharding.bounds[rank] if self.sharding.cut_by_rows else codes

    def _ids_of(self, rank: int) -> slice:
        start = 0 if self.everyone else sum(self.ids[:rank])
        return slice(start, start + self.ids[rank])

    @cached_property
    def _order(self) -> Tensor:
        """The order of ids by owner, with the ids of a bag together; padding is left out."""
        return group_by(self._owners, self.sharding.size)

    def read(self, bag_counts: Sequence[int]) -> list[tuple[Tensor, Bags]]:
        """Per lookup, the pieces whose sums make up its bags; bag_counts: bags of each lookup."""
        has_piece = self._there
        place = (
            has_piece.view(-1).cumsum(0).view(has_piece.shape) - 1
        )  # of a piece, by owner and bag
        inverse, pieces_per_bag = (
            place.T[has_piece.T],
            has_piece.sum(0),
        )  # pieces by bag, and how many
        sizes = [piece_counts.sum() for piece_counts in pieces_per_bag.split(list(bag_counts))]
        inverses = inverse.split(torch.stack(sizes).tolist() if sizes else [])
        return [
            (piece_places, Bags(F.pad(piece_counts.cumsum(0), (1, 0))))
            for piece_places, piece_counts in zip(inverses, pieces_per_bag.split(list(bag_counts)))
        ]


RankRequest = DistinctRows | BagPieces


@dataclass(frozen=True)
class Requester:
    """The rank that requests rows, and the bytes that a value of a vector takes."""

    rank: int
    itemsize: int

    def bytes(self, request: RankRequest, sharding: Sharding) -> int:
        """Bytes on the wire: ids to the owners, vectors back, gradients to the owners."""
        total = 0
        for owner in range(sharding.size):
            if owner != self.rank:
                head = request.head(owner)
                values = head.vectors * sharding.width(owner)
                total += WORD * head.words + 2 * self.itemsize * values
        return total


def plan_request(
    sharding: Sharding, flat: list[Tensor], bags: Sequence[Bags | None], requester: Requester | None
) -> RankRequest:
    """Request distinct rows for lookups in one table, or sums where fewer bytes travel.

    flat: ids of each lookup; bags: of each lookup (None: it has none); requester: None requests
    rows in any case.
    """
    ids = flat[0] if len(flat) == 1 else torch.cat(flat)
    rows = DistinctRows(sharding, ids)
    if requester is None or sharding.replicated:
        return rows
    if all(lookup_bags is None for lookup_bags in bags):
        return rows
    bags_by_lookup = []
    for lookup_ids, lookup_bags in zip(flat, bags):
        if lookup_bags is not None:
            lookup_bags.check(sharding.table.name, len(lookup_ids))
        bags_by_lookup.append(
            (len(lookup_ids), None if lookup_bags is None else lookup_bags.to(ids.device))
        )
    joined = join_bags(bags_by_lookup)
    if joined is None or len(ids) <= len(joined):  # lists of one id have nothing to sum
        return rows
    sums = BagPieces(sharding, ids, joined)
    return sums if requester.bytes(sums, sharding) <= requester.bytes(rows, sharding) else rows


def _words(numbers: Tensor) -> Tensor:
    """Four-byte numbers [n] as int64 words [n / 2], rounded up."""
    return F.pad(numbers, (0, len(numbers) % 2)).view(torch.int64)


# ---- vectors on the wire -------------------------------------------------------------------------


@dataclass(frozen=True)
class WirePrecision:
    """How rows, sums and gradients travel (strategy.wire_dtype); ids and counts stay exact.

    Each value is rounded once on each way, to the nearest: bfloat16 is off by at most 2^-8 of it,
    float16 by 2^-11, below 6.1e-5 by at most 2^-25, and has no value beyond 65,504.
    """

    dtype: torch.dtype = torch.float32

    @property
    def itemsize(self) -> int:
        """Bytes of a value."""
        return self.dtype.itemsize

    def narrow(self, vectors: Tensor) -> Tensor:
        """Float32 of any shape as it travels: flat."""
        flat = vectors.reshape(-1).to(self.dtype)
        if self.dtype == torch.float16 and bool(
            (flat.isinf() & ~vectors.reshape(-1).isinf()).any()
        ):
            raise ValueError(
                "strategy.wire_dtype: given float16, which ends at 65504, and a row or the "
                "gradient "
                f"of a row holds {float(vectors.abs().max()):g}: set strategy.wire_dtype=bfloat16"
            )
        return flat

    def widen(self, flat: Tensor) -> Tensor:
        """Values in wire precision as float32 [n] (reverses `narrow`)."""
        return flat.float()

    def exact(self, counts: Tensor) -> Tensor:
        """Float32 of any shape as its bits: flat, among values of the precision."""
        return counts.reshape(-1).view(self.dtype)

    def from_exact(self, flat: Tensor) -> Tensor:
        """Float32 [n] from its bits among values of the precision (reverses `exact`)."""
        return flat.clone().view(torch.float32)  # aligned
