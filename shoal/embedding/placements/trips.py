"""Trips: lookups in several tables on their way to where the rows are, and back.

A trip goes to the ranks that own the rows (sharded.py) or to servers (shoal.ps.worker.remote); what
it requests is in row_requests.py. Its vectors are rows of distinct ids, or sums over pieces of
bags; a lookup reads them by its `inverse`.

RoutedRows makes the trips of a step. The ids of a batch are explicit, so its trip is worked out
when it is prefetched, and its rows are here before the model asks. Lookups of the batch's own
fields are then answered without another trip; so are ids that a model computed itself, where these
are among the ids that came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.placements.row_requests import (
    BagPieces,
    DistinctRows,
    Requester,
    plan_request,
)
from shoal.embedding.rows.bags import Bags, join_bags
from shoal.embedding.rows.placement import Sharding
from shoal.embedding.rows.store import Every
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Lookup, RowService, Stepped
from shoal.kernels.bags import sum_bags
from shoal.kernels.codes import add_rows


class Placed(Protocol):
    """A table with its sharding, as a trip needs it."""

    table: Table
    sharding: Sharding
    counted: bool  # whether it is counted how often ids come


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
        if isinstance(self.request, DistinctRows):
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
        return self.num_vectors + (isinstance(self.request, DistinctRows) and self.request.padded)

    @property
    def peer_counts(self) -> list[int]:
        """How many vectors each rank requested of this one."""
        return [head.vectors for head in self.peer_heads]

    def outgoing(self, rank: int) -> slice:
        """The slice of the vectors that an owner sends."""
        return self.request.part_of(rank)

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
        self.peer_bags = None
        if any(bags is not None for _, bags in requests):
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


T = TypeVar("T", bound=Trip)


class RoutedRows(RowService, Generic[T]):
    """Answers lookups from trips; subclasses say where these go, and what gradients do."""

    def __init__(
        self,
        tables: Mapping[str, Stepped],
        rules: Mapping[str, RowRules] | None,
        device: torch.device,
    ):
        super().__init__(tables, rules, device)
        self._prefetched: list[tuple[object, T]] = []  # coming batches, first come first
        self._staged: T | None = None  # has the rows of the batch in training
        self._pending: list[T] = []  # trips of this step, whose gradients will be collected
        self._clicks: dict[int, Tensor] = {}  # of the batch's fields, where ids are counted
        self._tables_read: set[str] = set()  # tables that lookups read by the batch's ids
        self._unstaged: set[str] = set()  # tables whose rows the model does not look up by batch

    @abstractmethod
    def _trip(self, lookups: Sequence[Lookup]) -> T:
        """A trip of these lookups, not fetched yet."""

    def _fetch(self, trip: T, learn: bool) -> None:
        """Bring a trip's rows here."""
        trip.fetch()

    def _stage(self, trip: T) -> None:
        """Bring the rows of the batch in training here."""
        self._fetch(trip, learn=True)

    def _everywhere(self, missing: bool) -> bool:
        """Whether no rank misses a row of this lookup; all ranks call it at the same time."""
        return not missing

    def prefetch(self, batch: object, lookups: Sequence[Lookup]) -> None:
        to_stage = self._worth_staging(lookups)
        if to_stage:
            self._prefetched.append((batch, self._trip(to_stage)))

    def begin(self, batch: object, lookups: Sequence[Lookup]) -> None:
        self.batch = batch
        self._clicks = {
            lookup.field: lookup.clicks
            for lookup in lookups
            if lookup.field is not None and lookup.clicks is not None
        }
        trip = self._take_prefetched(batch)
        to_stage = self._worth_staging(lookups)
        if trip is None and to_stage:
            trip = self._trip(to_stage)
        self._staged, self._tables_read = trip, set()
        if trip is not None:
            self._stage(trip)
            self._add(trip)
        self._continue_prefetched()

    def _continue_prefetched(self) -> None:
        """The rows of the present batch are read: let trips of coming ones proceed."""
        for _, trip in self._prefetched:
            trip.start()

    def _worth_staging(self, lookups: Sequence[Lookup]) -> list[Lookup]:
        return [one for one in lookups if one.table not in self._unstaged]

    def _take_prefetched(self, batch: object) -> T | None:
        """The trip of a prefetched batch; trips of batches before it are dropped."""
        if not any(prefetched_batch is batch for prefetched_batch, _ in self._prefetched):
            return None
        while True:
            prefetched_batch, trip = self._prefetched.pop(0)
            if prefetched_batch is batch:
                return trip
            trip.arrive()

    def _add(self, trip: T) -> None:
        """Add a trip whose rows' gradients `collect` returns."""
        self._pending.append(trip)
        for part in trip.parts.values():
            part.clicks = self._clicks

    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        if learn:
            self._record_reads(lookups)
            if self._staged is not None:
                staged_rows = self._read_staged(self._staged, lookups)
                if staged_rows is not None:
                    return staged_rows
        rows = {} if learn else self._pull_held(lookups)
        fetched = [number for number in range(len(lookups)) if number not in rows]
        if fetched:
            trip = self._trip([lookups[number] for number in fetched])
            self._fetch(trip, learn)
            if learn:
                self._add(trip)
            for number, (name, place) in zip(fetched, trip.order):
                part = trip.parts[name]
                rows[number] = part.expand(place, part.inverse[place], lookups[number], learn)
        return [rows[number] for number in range(len(lookups))]

    def _record_reads(self, lookups: Sequence[Lookup]) -> None:
        """Remember which tables the model reads by the batch's ids."""
        by_batch = {lookup.table for lookup in lookups if lookup.field is not None}
        self._tables_read |= by_batch
        self._unstaged -= by_batch

    def _pull_held(self, lookups: Sequence[Lookup]) -> dict[int, Tensor]:
        """Rows that are in this process and get no gradient, by the number of the lookup."""
        return {}

    def _read_staged(self, trip: T, lookups: Sequence[Lookup]) -> list[Tensor] | None:
        """Rows of lookups among those staged; None where some rank would miss one."""
        chosen: list[tuple[TableTrip, int | None, Tensor]] = []
        all_matched, missing = True, False
        for lookup in lookups:
            part = trip.parts.get(lookup.table)
            if part is None or isinstance(lookup.flat, Every):
                return None  # every rank decides the same
            match = part.find(lookup)
            if match is None:
                return None  # every rank decides the same
            number, inverse, misses = match
            all_matched, missing = all_matched and number is not None, missing or misses
            chosen.append((part, number, inverse))
        # Ids that a model computed from the batch's: all ranks have their rows, or all fetch them.
        if not all_matched and not self._everywhere(missing):
            return None
        self._tables_read |= {lookup.table for lookup in lookups}
        return [
            part.expand(number, inverse, lookup, learn=True)
            for (part, number, inverse), lookup in zip(chosen, lookups)
        ]

    def _end_step(self) -> list[T]:
        """Return the trips of this step, and forget them."""
        if self._staged is not None:
            # A model that reads whole tables (a graph model) looks up none of the batch's rows.
            self._unstaged |= self._staged.parts.keys() - self._tables_read
        trips, self._pending = self._pending, []
        self._staged, self._clicks = None, {}
        return trips

    def synchronize(self) -> None:
        super().synchronize()
        self._staged = None
