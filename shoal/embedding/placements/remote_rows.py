"""RoutedRows: the base of all services whose rows are elsewhere; it makes the trips of a step.

The ids of a batch are explicit, so its trip is worked out when it is prefetched, and its rows are
here before the model asks. Lookups of the batch's own fields are then answered without a trip of
their own; so are ids that a model computed itself, where these are among the ids that came.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.placements.trips import TableTrip, Trip
from shoal.embedding.rows.store import Every
from shoal.embedding.service import Lookup, RowService, Stepped

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
            by_batch = {one.table for one in lookups if one.field is not None}
            self._tables_read |= by_batch
            self._unstaged -= by_batch
        if learn and self._staged is not None:
            staged_rows = self._read_staged(self._staged, lookups)
            if staged_rows is not None:
                return staged_rows
        trip = self._trip(lookups)
        self._fetch(trip, learn)
        if learn:
            self._add(trip)
        result = []
        for (name, number), lookup in zip(trip.order, lookups):
            part = trip.parts[name]
            result.append(part.expand(number, part.inverse[number], lookup, learn))
        return result

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
