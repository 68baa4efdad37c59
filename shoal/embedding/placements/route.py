"""Route: the distinct ids of some lookups, on their way to the ranks that own them.

ids of the lookups   7 3 3 9 | 7 0          (0 is padding: it never travels)
keys, by owner       3 9 | 7                ranks 0 and 1
inverse              2 0 0 1 | 2 3          rows come back in the order of the keys; then zeros
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.embedding.engines.row_engine import every_id
from shoal.embedding.placements.sharded_table import ShardedTable
from shoal.embedding.rows.bags import Bags
from shoal.embedding.rows.placement import Sharding
from shoal.embedding.rows.store import Every, Ids
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Lookup
from shoal.kernels.bags import sum_bags
from shoal.kernels.codes import add_rows, code_map, distinct
from shoal.world.world import Arriving, World


class Distinct:
    """The distinct ids of one table, grouped by owner, and where each id stands among them."""

    def __init__(self, sharding: Sharding, ids: Tensor):
        self.sharding = sharding
        if sharding.grows:
            self._grouped(ids)
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

    def _grouped(self, ids: Tensor) -> None:
        """Growing tables: any 64-bit id; sorted ids are regrouped by owner."""
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

    def find(self, ids: Tensor) -> tuple[Tensor, bool]:
        """Where each id stands, and whether one is not there (its place then means nothing)."""
        if len(self._codes) == 0:
            return torch.zeros_like(ids), ids.numel() > 0
        wanted = ids if self.sharding.grows else self.sharding.codes(ids)
        if not self.sharding.grows:
            if self._place is None:  # made when first asked for: most lookups are the batch's own
                limit = (self.sharding.table.rows or 0) + 1
                numbers = torch.arange(len(self._codes), device=ids.device)
                self._place = code_map(self._codes, limit, numbers)
            places = self._place[wanted]
            return places, bool((places < 0).any())
        places = torch.searchsorted(self._codes, wanted).clamp(max=len(self._codes) - 1)
        missing = bool((self._codes[places] != wanted).any())
        assert self._place is not None
        return self._place[places], missing


class Placed(Protocol):
    """What a part must know of its table."""

    table: Table
    sharding: Sharding

    @property
    def counted(self) -> bool:
        """Whether it is counted how often ids come."""


class TableTrip:
    """One table's lookups within a trip."""

    def __init__(self, placed: Placed, lookups: Sequence[Lookup], device: torch.device):
        self.placed, self.sharding = placed, placed.sharding
        self.fields = [one.field for one in lookups]
        flat = [_each(one.flat, placed.table, device) for one in lookups]
        self.distinct = Distinct(self.sharding, flat[0] if len(flat) == 1 else torch.cat(flat))
        self.keys, self.counts = self.distinct.keys, self.distinct.counts
        self.inverse = list(self.distinct.inverse.split([len(one) for one in flat]))
        self.theirs = self.keys  # keys that were asked of this rank, in order of rank
        self.their_counts = self.counts
        self.rows: Tensor | None = None  # [keys, dim], one row of zeros more when padded
        self.grads: Tensor | None = None  # likewise
        self.taken: list[tuple[int | None, Tensor]] = []  # lookups that backward came through
        self.clicks: dict[int, Tensor] = {}  # of the batch's fields, where ids are counted

    @property
    def num_rows(self) -> int:
        return len(self.keys) + self.distinct.padded

    def outgoing(self, rank: int) -> slice:
        """Which of the keys go to a rank."""
        if self.sharding.everyone:
            return slice(0, len(self.keys))
        start = sum(self.counts[:rank])
        return slice(start, start + self.counts[rank])

    def incoming(self, rank: int) -> slice:
        """Which of the keys asked of this rank came from a rank."""
        start = sum(self.their_counts[:rank])
        return slice(start, start + self.their_counts[rank])

    def make_rows(self) -> Tensor:
        """Memory for the rows of the keys: [keys, dim], to be written to."""
        keys = len(self.keys)
        self.rows = torch.empty(self.num_rows, self.sharding.table.dim, device=self.keys.device)
        self.rows[keys:] = 0.0
        return self.rows[:keys]

    def take_rows(self, rows: Tensor) -> None:
        """The rows of the keys [keys, dim]; the padding id's row of zeros stands after them."""
        self.rows = F.pad(rows, (0, 0, 0, 1)) if self.distinct.padded else rows

    def expand(self, number: int | None, inverse: Tensor, lookup: Lookup, learn: bool) -> Tensor:
        """Rows of a lookup whose ids stand at `inverse`; `number`: of which one.

        [..., dim] with the ids' shape before; of bags their sums [bags, dim].
        """
        assert self.rows is not None
        shape = inverse.shape if isinstance(lookup.ids, Every) else lookup.ids.shape
        bags = lookup.bags
        if bags is not None:
            bags.check(lookup.table, len(inverse))
            bags = bags.to(inverse.device)
        if learn:
            return _Expand.apply(self.rows.requires_grad_(), (self, number, inverse, shape, bags))
        return _read(self.rows, inverse, shape, bags)

    def add(
        self, number: int | None, inverse: Tensor, grads: Tensor, bags: Bags | None = None
    ) -> None:
        """Gradients of one lookup: inverse [n], grads [n, dim]; of bags [bags, dim]."""
        by = (None, None) if bags is None else (bags.offsets, bags.weights)
        self.grads = add_rows(self.grads, inverse, grads, self.num_rows, True, *by)
        self.taken.append((number, inverse))

    def unused(self) -> Tensor | None:
        """Which keys no gradient came to [keys]; None where all have one."""
        came = {number for number, _ in self.taken}
        if came.issuperset(range(len(self.inverse))):
            return None
        unused = torch.ones(self.num_rows, dtype=torch.bool, device=self.keys.device)
        for _, inverse in self.taken:
            unused[inverse] = False
        unused = unused[: len(self.keys)]
        return unused if bool(unused.any()) else None

    def seen(self) -> Tensor:
        """How often the ids of lookups with a gradient were shown, and clicked: [keys, 2]."""
        counts = torch.zeros(self.num_rows, 2, dtype=torch.float64)
        for number, inverse in self.taken:
            places = inverse.cpu()
            counts[:, 0] += torch.bincount(places, minlength=self.num_rows)
            field = None if number is None else self.fields[number]
            if field is not None and field in self.clicks:  # ids that a model made itself have none
                weights = self.clicks[field].double()
                counts[:, 1] += torch.bincount(places, weights, minlength=self.num_rows)
        return counts[: len(self.keys)].to(self.keys.device, torch.float32)


def _each(ids: Ids, table: Table, device: torch.device) -> Tensor:
    return every_id(table).to(device) if isinstance(ids, Every) else ids


def _read(rows: Tensor, inverse: Tensor, shape: torch.Size, bags: Bags | None) -> Tensor:
    if bags is None:
        return F.embedding(inverse.view(shape), rows)
    return sum_bags(rows, bags.offsets, inverse, bags.weights)


class _Expand(torch.autograd.Function):
    """rows[inverse]; backward sums into the part's gradients, in the order they will be sent."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, lookup: tuple) -> Tensor:
        ctx.lookup = lookup
        return _read(rows, *lookup[2:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        part, number, inverse, _, bags = ctx.lookup
        part.add(number, inverse, grads[0].reshape(-1, grads[0].shape[-1]), bags)
        return None, None


class Trip(ABC):
    """Lookups in several tables that travel together."""

    def __init__(
        self, placed: Mapping[str, Placed], lookups: Sequence[Lookup], device: torch.device
    ):
        grouped: dict[str, list[Lookup]] = {}
        self.order: list[tuple[str, int]] = []  # of the lookups: table, number within the table
        for lookup in lookups:
            requested = grouped.setdefault(lookup.table, [])
            self.order.append((lookup.table, len(requested)))
            requested.append(lookup)
        self.parts = {name: TableTrip(placed[name], some, device) for name, some in grouped.items()}

    def start(self) -> None:
        """Let what can travel before the rows are read go."""

    @abstractmethod
    def fetch(self) -> None:
        """Bring the rows here: they are read now."""

    def arrive(self) -> None:
        """What travels has arrived, and no more is asked for."""


class Route(Trip):
    """A trip to the ranks that own the rows. All ranks make the same ones.

    Made, started and fetched in three calls, so that counts and then ids travel while the caller
    computes something else.
    """

    def __init__(self, world: World, placed: Mapping[str, ShardedTable], lookups: Sequence[Lookup]):
        super().__init__(placed, lookups, world.device)
        self.world, self.engines = world, {name: placed[name].engine for name in self.parts}
        table = [part.counts for part in self.parts.values()]
        counts = torch.tensor(table, device=world.device).T.contiguous()  # [size, tables]
        each = [1] * world.size
        self._counts: Arriving | None = world.start_all_to_all(counts, each, each)
        self._ids: Arriving | None = None

    def start(self) -> None:
        """The counts are here: let the ids go."""
        if self._counts is None:
            return
        size = self.world.size
        theirs = self._counts.wait().T.tolist()
        self._counts = None
        parts = list(self.parts.values())
        for part, counts in zip(parts, theirs):
            part.their_counts = counts
        keys = pack([[part.keys[part.outgoing(r)] for part in parts] for r in range(size)])
        sent = [sum(part.counts[r] for part in parts) for r in range(size)]
        received = [sum(part.their_counts[r] for part in parts) for r in range(size)]
        self._ids = self.world.start_all_to_all(keys, sent, received)

    def arrive(self) -> None:
        """The ids asked of this rank are here."""
        self.start()
        if self._ids is None:
            return
        parts = list(self.parts.values())
        counts = [[part.their_counts[r] for part in parts] for r in range(self.world.size)]
        for part, theirs in zip(parts, unpack(self._ids.wait(), counts)):
            part.theirs = theirs[0] if len(theirs) == 1 else torch.cat(theirs)
        self._ids = None

    def fetch(self) -> None:
        """Bring the rows here: owners read them now."""
        self.arrive()
        world, size = self.world, self.world.size
        travelling = [part for part in self.parts.values() if not part.sharding.replicated]
        for name, part in self.parts.items():
            if part.sharding.replicated:
                engine = self.engines[name]
                assert engine is not None
                part.take_rows(engine.pull(part.keys).to(world.device))
        if not travelling:
            return
        served = [self._serve(part) for part in travelling]
        outgoing = [
            [rows[part.incoming(r)].reshape(-1) for part, rows in zip(travelling, served)]
            for r in range(size)
        ]
        lengths = [[p.counts[r] * p.sharding.width(r) for p in travelling] for r in range(size)]
        for part, pieces in zip(travelling, exchange(world, outgoing, lengths)):
            rows = part.make_rows()
            for r, piece in enumerate(pieces):
                first, last = part.sharding.columns[r]
                keys = part.outgoing(r)
                rows[keys, first:last] = piece.view(keys.stop - keys.start, last - first)

    def _serve(self, part: TableTrip) -> Tensor:
        """The rows that were asked of this rank: [theirs, its columns]."""
        engine, device = self.engines[part.sharding.table.name], self.world.device
        if engine is None:
            return torch.empty(
                len(part.theirs), part.sharding.width(self.world.rank), device=device
            )
        return engine.pull(part.theirs).to(device)


def exchange(
    world: World, outgoing: list[list[Tensor]], lengths: list[list[int]]
) -> list[list[Tensor]]:
    """Send outgoing[rank][table]; lengths[rank][table] come back, as `unpack` has them."""
    sent = [sum(len(piece) for piece in pieces) for pieces in outgoing]
    received = [sum(some) for some in lengths]
    return unpack(world.all_to_all(pack(outgoing), sent, received), lengths)


def pack(pieces: list[list[Tensor]]) -> Tensor:
    """One buffer of pieces[rank][table], rank by rank."""
    return torch.cat([piece for some in pieces for piece in some])


def unpack(buffer: Tensor, lengths: list[list[int]]) -> list[list[Tensor]]:
    """The opposite: pieces[table][rank], as views."""
    views = buffer.split([length for some in lengths for length in some])
    tables = len(lengths[0])
    return [list(views[table::tables]) for table in range(tables)]
