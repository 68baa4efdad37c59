"""Trips: lookups in several tables on their way to where the rows are, and back.

A route goes to the ranks that own the rows (its requests: row_requests.py). Its vectors are rows of
distinct ids, or sums over pieces of bags; a lookup reads them by its `inverse`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.distributed.world import Arriving, World
from shoal.embedding.placements.exchange import WirePrecision, exchange, pack, unpack
from shoal.embedding.placements.row_requests import (
    HEAD,
    BagPieces,
    Distinct,
    Head,
    Requester,
    plan_request,
)
from shoal.embedding.placements.sharded_table import ShardedTable
from shoal.embedding.rows.bags import Bags, join_bags
from shoal.embedding.rows.placement import Sharding
from shoal.embedding.rows.store import Every
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Lookup
from shoal.kernels.bags import sum_bags
from shoal.kernels.distinct_ids import add_rows


class Placed(Protocol):
    """A table with its sharding, as a trip needs it."""

    table: Table
    sharding: Sharding

    @property
    def counted(self) -> bool:
        """Whether it is counted how often ids come."""


class TableTrip:
    """One table's lookups within a trip."""

    def __init__(
        self,
        placed: Placed,
        lookups: Sequence[Lookup],
        device: torch.device,
        requester: Requester | None = None,
    ):
        """requester: this rank, where owners can sum the rows of bags; None: rows are requested."""
        self.placed, self.sharding = placed, placed.sharding
        self.fields = [one.field for one in lookups]
        self._pooled = [one.bags is not None for one in lookups]
        flat = [one.ids_in(placed.table, device) for one in lookups]
        # Counts of ids travel with their rows, so counted tables pool no bags.
        pooling_requester = requester if not placed.counted else None
        self.request = plan_request(
            self.sharding, flat, [one.bags for one in lookups], pooling_requester
        )
        self.device, self.counts = device, self.request.counts
        self.inverse: list[Tensor] = []  # the places of each lookup's ids among the vectors
        self.sums: list[Bags | None] = []  # the vectors of each sum; None: the lookup's own bags
        if isinstance(self.request, Distinct):
            self.keys = self.request.keys  # of distinct rows, by owner
            self.inverse = list(self.request.inverse.split([len(one) for one in flat]))
            self.sums, self.num_vectors = [None] * len(flat), len(self.keys)
        else:
            self.num_vectors = self.request.num_vectors
            num_bags = [
                len(ids if lookup.bags is None else lookup.bags)
                for ids, lookup in zip(flat, lookups)
            ]
            for inverse, sums in self.request.read(num_bags):
                self.inverse.append(inverse)
                self.sums.append(sums)
        self.heads = [self.request.head(rank) for rank in range(self.sharding.size)]
        self.peer_heads = self.heads
        self.peer_ids = flat[0][:0]  # keys that ranks requested of this one, by rank
        self.peer_bags: Bags | None = None  # whose sums are requested; None: rows are
        self.rows: Tensor | None = (
            None  # vectors [n, dim], then a row of zeros where ids have padding
        )
        self.grads: Tensor | None = None  # gradients of the rows, of their shape
        self.taken: list[tuple[int | None, Tensor]] = []  # lookups that backward came through
        self.clicks: dict[int, Tensor] = {}  # of the batch's fields, where ids are counted

    @property
    def num_rows(self) -> int:
        return self.num_vectors + (isinstance(self.request, Distinct) and self.request.padded)

    @property
    def peer_counts(self) -> list[int]:
        """How many vectors each rank requested of this one."""
        return [head.vectors for head in self.peer_heads]

    def outgoing(self, rank: int) -> slice:
        """The slice of the vectors that an owner sends."""
        if self.sharding.everyone:
            return slice(0, self.num_vectors)
        start = sum(self.counts[:rank])
        return slice(start, start + self.counts[rank])

    def incoming(self, rank: int) -> slice:
        """The slice of the vectors of this rank's engine that a rank requested."""
        start = sum(self.peer_counts[:rank])
        return slice(start, start + self.peer_counts[rank])

    def receive_requests(self, messages: Sequence[Tensor]) -> None:
        """Read the requests of every rank to this one."""
        requests = [head.parse(words) for head, words in zip(self.peer_heads, messages)]
        self.peer_ids = (
            requests[0][0] if len(requests) == 1 else torch.cat([ids for ids, _ in requests])
        )
        self.peer_bags = join_bags([(len(ids), bags) for ids, bags in requests])

    def find(self, lookup: Lookup) -> tuple[int | None, Tensor, bool] | None:
        """The number of a lookup in the trip, the places of its ids, and whether any is missing.

        None: the trip was to pool this lookup, which now wants rows. All ranks return None then,
        even those that have the rows.
        """
        if lookup.field is not None and lookup.field in self.fields:
            number = self.fields.index(lookup.field)
            fits = lookup.bags is not None or not self._pooled[number]
            return (number, self.inverse[number], False) if fits else None
        assert isinstance(lookup.flat, Tensor)
        if isinstance(self.request, BagPieces):
            return None, lookup.flat, True
        return None, *self.request.find(lookup.flat)

    def make_rows(self) -> Tensor:
        """Allocate the vectors [n, dim], to be written to."""
        count = self.num_vectors
        self.rows = torch.empty(self.num_rows, self.sharding.table.dim, device=self.device)
        self.rows[count:] = 0.0
        return self.rows[:count]

    def take_rows(self, rows: Tensor) -> None:
        """The rows of the keys [keys, dim]; the padding id's row of zeros stands after them."""
        self.rows = F.pad(rows, (0, 0, 0, 1)) if self.num_rows > len(rows) else rows

    def expand(self, number: int | None, inverse: Tensor, lookup: Lookup, learn: bool) -> Tensor:
        """Rows of a lookup whose ids are at `inverse`: [ids' shape..., dim]; of bags their sums
        [bags, dim]. number: of the lookup in this trip; None: it is not one of the trip's.
        """
        assert self.rows is not None
        bags, sums, pooled = lookup.bags, None, False
        if number is not None:
            sums, pooled = self.sums[number], self._pooled[number]
        if bags is not None and (sums is None or not pooled):
            flat = bags.to(inverse.device)
            flat.check(lookup.table, len(inverse) if sums is None else len(sums))
            # Of ids that were not meant to be pooled a sum came for each, but for padding.
            sums = flat if sums is None else flat.keep_ids(sums.offsets.diff() > 0)
        if learn:
            vectors = _Expand.apply(self.rows.requires_grad_(), (self, number, inverse, sums))
        else:
            vectors = _read(self.rows, inverse, sums)
        if bags is not None or isinstance(lookup.ids, Every):
            return vectors
        return vectors.view(*lookup.ids.shape, vectors.shape[1])

    def add(
        self, number: int | None, inverse: Tensor, grads: Tensor, bags: Bags | None = None
    ) -> None:
        """Gradients of one lookup: inverse [n], grads [n, dim]; of bags [bags, dim]."""
        by = (None, None) if bags is None else (bags.offsets, bags.weights)
        self.grads = add_rows(self.grads, inverse, grads, self.num_rows, True, *by)
        self.taken.append((number, inverse))

    def unused(self) -> Tensor | None:
        """A mask of the vectors without a gradient [n]; None where all have one."""
        numbers_with_gradient = {number for number, _ in self.taken}
        if numbers_with_gradient.issuperset(range(len(self.inverse))):
            return None
        unused = torch.ones(self.num_rows, dtype=torch.bool, device=self.device)
        for _, inverse in self.taken:
            unused[inverse] = False
        unused = unused[: self.num_vectors]
        return unused if bool(unused.any()) else None

    def shown_counts(self) -> Tensor:
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


def _read(rows: Tensor, inverse: Tensor, bags: Bags | None) -> Tensor:
    if bags is None:
        return F.embedding(inverse, rows)
    return sum_bags(rows, bags.offsets, inverse, bags.weights)


class _Expand(torch.autograd.Function):
    """rows[inverse]; backward sums into the table's gradients, in the order of sending."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, lookup: tuple) -> Tensor:
        ctx.lookup = lookup
        return _read(rows, *lookup[2:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        part, number, inverse, bags = ctx.lookup
        part.add(number, inverse, grads[0].reshape(-1, grads[0].shape[-1]), bags)
        return None, None


class Trip(ABC):
    """Lookups in several tables that travel together."""

    def __init__(
        self,
        placed: Mapping[str, Placed],
        lookups: Sequence[Lookup],
        device: torch.device,
        requester: Requester | None = None,
    ):
        """requester: this rank, where owners can sum the rows of bags; None: rows are requested."""
        grouped: dict[str, list[Lookup]] = {}
        self.order: list[tuple[str, int]] = []  # of the lookups: table, number within the table
        for lookup in lookups:
            table_lookups = grouped.setdefault(lookup.table, [])
            self.order.append((lookup.table, len(table_lookups)))
            table_lookups.append(lookup)
        self.parts = {
            name: TableTrip(placed[name], table_lookups, device, requester)
            for name, table_lookups in grouped.items()
        }

    def start(self) -> None:
        """Send what can travel before the rows are read."""

    @abstractmethod
    def fetch(self) -> None:
        """Bring the rows here: they are read now."""

    def arrive(self) -> None:
        """Wait for what is under way; nothing more is requested."""


class Route(Trip):
    """A trip to the ranks that own the rows; all ranks make the same trips.

    It is created, started and fetched by three calls, so that counts and then ids travel while the
    caller computes something else.
    """

    def __init__(
        self,
        world: World,
        placed: Mapping[str, ShardedTable],
        lookups: Sequence[Lookup],
        precision: WirePrecision,
    ):
        requester = Requester(world.rank, precision.itemsize)
        super().__init__(placed, lookups, world.device, requester)
        self.precision = precision
        self.world, self.engines = world, {name: placed[name].engine for name in self.parts}
        numbers = [
            [part.heads[r].numbers() for part in self.parts.values()] for r in range(world.size)
        ]
        heads = torch.tensor(numbers, device=world.device).view(world.size, -1)
        ones = [1] * world.size
        self._heads: Arriving | None = world.start_all_to_all(heads, ones, ones)
        self._messages: Arriving | None = None

    def start(self) -> None:
        """Wait for the heads, then send the messages."""
        if self._heads is None:
            return
        head_numbers = self._heads.wait().view(self.world.size, -1, HEAD).tolist()
        self._heads = None
        parts = list(self.parts.values())
        for part, heads in zip(parts, zip(*head_numbers)):
            part.peer_heads = [Head.read(*numbers) for numbers in heads]
        ranks = range(self.world.size)
        words = pack(
            [[message for part in parts for message in part.request.message(r)] for r in ranks]
        )
        sent = [sum(part.heads[r].words for part in parts) for r in ranks]
        received = [sum(part.peer_heads[r].words for part in parts) for r in ranks]
        self._messages = self.world.start_all_to_all(words, sent, received)

    def arrive(self) -> None:
        """Wait for the requests to this rank."""
        self.start()
        if self._messages is None:
            return
        parts = list(self.parts.values())
        lengths = [[part.peer_heads[r].words for part in parts] for r in range(self.world.size)]
        for part, messages in zip(parts, unpack(self._messages.wait(), lengths)):
            part.receive_requests(messages)
        self._messages = None

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
            [
                self.precision.narrow(rows[part.incoming(r)])
                for part, rows in zip(travelling, served)
            ]
            for r in range(size)
        ]
        lengths = [[p.counts[r] * p.sharding.width(r) for p in travelling] for r in range(size)]
        for part, pieces in zip(travelling, exchange(world, outgoing, lengths)):
            rows = part.make_rows()
            for r, piece in enumerate(pieces):
                first, last = part.sharding.columns[r]
                keys = part.outgoing(r)
                vectors = self.precision.widen(piece)
                rows[keys, first:last] = vectors.view(keys.stop - keys.start, last - first)

    def _serve(self, part: TableTrip) -> Tensor:
        """The vectors that ranks requested of this one: [n, columns held here]."""
        engine, device = self.engines[part.sharding.table.name], self.world.device
        if engine is None:
            count, width = sum(part.peer_counts), part.sharding.width(self.world.rank)
            return torch.empty(count, width, device=device)
        if part.peer_bags is None:
            return engine.pull(part.peer_ids).to(device)
        return engine.pull_bags(part.peer_ids, part.peer_bags).to(device)
