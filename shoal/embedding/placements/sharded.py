"""ShardedRows: tables spread over the ranks, whose ids, rows and gradients travel together.

A training step makes three trips however many tables there are: ids to the owners, rows back,
gradients to the owners. Ids are sent one batch ahead; rows are read only after the update before
them, so the numbers are those of one process. For lists that a model reads pooled, owners return
sums where that is fewer bytes (row_requests.py), and expand the gradients of these. Where ids are
counted (see shoal.embedding.rows.admission), how often each came travels with its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.distributed.world import World
from shoal.embedding.engines.local import pull_all
from shoal.embedding.output_table import InPlaceRows
from shoal.embedding.placements.exchange import WirePrecision, exchange
from shoal.embedding.placements.groups import RankGroups
from shoal.embedding.placements.remote_rows import RoutedRows, T
from shoal.embedding.placements.sharded_table import ShardedTable
from shoal.embedding.placements.trips import Route, TableTrip
from shoal.embedding.rows.admission import apply_row_rules
from shoal.embedding.rows.bags import join_bags
from shoal.embedding.rows.store import Every, Store
from shoal.embedding.service import Collected, Gradients, Lookup, RowGradients


class SpreadRows(RoutedRows[T]):
    """Tables whose rows ranks hold between them. Every call is made by all ranks."""

    def __init__(
        self,
        world: World,
        tables: Mapping[str, ShardedTable],
        rules: Mapping[str, RowRules] | None = None,
        groups: RankGroups | None = None,
    ):
        """world: the ranks that share the tables; groups: of ranks that hold the same rows."""
        super().__init__(tables, rules, world.device)
        self.world, self.sharded = world, dict(tables)
        self.groups = groups or RankGroups(world)

    @property
    def stores(self) -> dict[str, Store]:
        return dict(self.sharded)

    def _everywhere(self, missing: bool) -> bool:
        vote = torch.tensor([float(missing)], device=self.device)
        return float(self.groups.whole.all_reduce(vote)) == 0

    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        if not learn:  # no gradients follow, so replicas are read without the other ranks
            away = [one for one in lookups if not self.sharded[one.table].sharding.replicated]
            if len(away) < len(lookups):
                return self._pull_replicated(lookups, away)
        return super().pull(lookups, learn)

    def _pull_replicated(self, lookups: Sequence[Lookup], away: Sequence[Lookup]) -> list[Tensor]:
        fetched = iter(self.pull(away, learn=False) if away else [])
        rows = []
        for lookup in lookups:
            table = self.sharded[lookup.table]
            if table.sharding.replicated:
                assert table.engine is not None
                flat = pull_all([table.engine], [lookup.flat], bags=[lookup.bags])[0]
                rowwise = lookup.bags is not None or isinstance(lookup.ids, Every)
                shape = flat.shape[:1] if rowwise else lookup.ids.shape  # type: ignore[union-attr]
                rows.append(flat.to(self.device).view(*shape, flat.shape[1]))
            else:
                rows.append(next(fetched))
        return rows

    # ---- rows that never travel -----------------------------------------------------------------

    def _rows_in_place(self, name: str) -> InPlaceRows | None:
        table = self.sharded[name]
        return (
            InPlaceRows(table.engine, split=(table.sharding, self.world))
            if table.sharding.cut_by_rows
            else None
        )


class ShardedRows(SpreadRows[Route]):
    """Engines of all ranks, read and updated by their owners."""

    def __init__(
        self,
        world: World,
        tables: Mapping[str, ShardedTable],
        rules: Mapping[str, RowRules] | None = None,
        groups: RankGroups | None = None,
        precision: WirePrecision | None = None,
    ):
        super().__init__(world, tables, rules, groups)
        self.precision = precision or WirePrecision()
        self._lists: set[int] = set()  # fields of the batch in training that are lists
        self._read: dict[int, bool] = {}  # fields read in this step: always pooled?
        self._pooled: dict[int, bool] = {}  # by field: pooled when it was last read?

    def begin(self, batch: object, lookups: Sequence[Lookup]) -> None:
        self._lists |= {
            lookup.field
            for lookup in lookups
            if lookup.bags is not None and lookup.field is not None
        }
        super().begin(batch, lookups)

    def _worth_staging(self, lookups: Sequence[Lookup]) -> list[Lookup]:
        """Lists are staged once the model has shown how it reads them: pooled, or one by one."""
        return [
            lookup
            if lookup.field is None or self._pooled.get(lookup.field)
            else replace(lookup, bags=None)
            for lookup in super()._worth_staging(lookups)
            if lookup.bags is None or lookup.field in self._pooled
        ]

    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        if learn:
            for lookup in lookups:
                if lookup.field is not None:
                    pooled = lookup.bags is not None
                    self._read[lookup.field] = self._read.get(lookup.field, True) and pooled
        return super().pull(lookups, learn)

    def _end_step(self) -> list[Route]:
        unread = dict.fromkeys(self._lists - self._pooled.keys(), False)
        self._pooled |= unread | self._read
        self._lists, self._read = set(), {}
        return super()._end_step()

    def _trip(self, lookups: Sequence[Lookup]) -> Route:
        return Route(self.world, self.sharded, lookups, self.precision)

    @staticmethod
    def _parts(trips: Sequence[Route]) -> list[TableTrip]:
        return [part for trip in trips for part in trip.parts.values()]

    def collect(self, dense: Sequence[Tensor] = ()) -> Collected:
        """Send this step's gradients to their owners: of keys of their engines, unsummed.

        They come in order of rank. Where ids are counted, a row that got no gradient was never
        shown; elsewhere ranks send which rows had one, if any rank has rows that had none.
        """
        parts = self._parts(self._pending)
        outputs = self._take_outputs({part.sharding.table.name for part in parts})
        unused = any(part.unused() is not None for part in parts if not part.placed.counted)
        flat = torch.cat([*dense, torch.tensor([float(unused)], device=self.device)])
        flat = self.groups.whole.all_reduce(flat)
        gathered = self._send_all(self._parts(self._end_step()), some_unused=float(flat[-1]) > 0)
        rows = {
            name: self._joined(name, row_gradients + outputs.get(name, []))
            for name, row_gradients in gathered.items()
        }
        return Collected(flat[:-1], self.groups.agreed(rows, self.sharded, self.precision))

    def _send_all(self, parts: list[TableTrip], some_unused: bool) -> dict[str, list[RowGradients]]:
        """Gradients that came to this rank, of each trip, by table."""
        counted = [part for part in parts if part.placed.counted]
        for part in parts:
            if part.grads is None:
                part.grads = torch.zeros(part.num_rows, part.sharding.table.dim, device=self.device)
        sent = self._send(parts, counted)
        gathered: dict[str, list[RowGradients]] = {name: [] for name in self.sharded}
        counts_by_part = iter(sent[len(parts) :])
        used = self._used(parts) if some_unused and len(counted) < len(parts) else {}
        for number, (part, grads) in enumerate(zip(parts, sent)):
            counts = next(counts_by_part).cpu() if part.placed.counted else None
            row_gradients = RowGradients(part.peer_ids, grads, counts, bags=part.peer_bags)
            if number in used:
                row_gradients = row_gradients.select(used[number])
            gathered[part.sharding.table.name].append(row_gradients)
        return gathered

    def _joined(self, name: str, pieces: list[RowGradients]) -> RowGradients:
        """One table's gradients from several trips, and of rows that were read in place."""
        table = self.sharded[name]
        if len(pieces) == 1:
            joined = pieces[0]
        else:
            width = table.sharding.width(self.world.rank)
            keys = [torch.empty(0, dtype=torch.int64), *(table.keys(piece.ids) for piece in pieces)]
            grads = [torch.empty(0, width, device=self.device), *(piece.grads for piece in pieces)]
            joined = RowGradients(
                torch.cat([piece.to(self.device) for piece in keys]),
                torch.cat(grads),
                bags=join_bags([(len(key), piece.bags) for key, piece in zip(keys[1:], pieces)]),
            )
        if table.counted:
            counts = [piece.counts for piece in pieces if piece.counts is not None]
            joined = replace(joined, counts=torch.cat([torch.empty(0, 2), *counts]))
        return replace(joined, partial=not table.sharding.replicated)

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        for name, row_gradients in gradients.items():
            self.sharded[name].push_own(row_gradients, lr, scale)
        for name, rules in self.rules.items():
            apply_row_rules(self.sharded[name], rules, self.sharded[name].sharding.num_shares)
        self._step_outputs(lr, scale)
        self.groups.stepped(self.sharded)

    def synchronize(self) -> None:
        super().synchronize()
        self.groups.agree(self.sharded)

    def saved(self) -> Iterator[tuple[str, Store]]:
        """The stores of the first group; the other groups hold the same rows."""
        if self.groups.peers.is_main:
            yield from super().saved()

    def _send(self, parts: list[TableTrip], counted: list[TableTrip]) -> list[Tensor]:
        """The gradients that came for each part: [vectors, columns held here]; then the counts."""
        world, size, rank = self.world, self.world.size, self.world.rank
        precision = self.precision
        if not parts:
            return []
        counts_by_part = [part.shown_counts() for part in counted]
        outgoing = []
        for r in range(size):
            pieces = []
            for part in parts:
                first, last = part.sharding.columns[r]
                assert part.grads is not None
                pieces.append(precision.narrow(part.grads[part.outgoing(r), first:last]))
            pieces += [
                precision.exact(c[part.outgoing(r)]) for c, part in zip(counts_by_part, counted)
            ]
            outgoing.append(pieces)
        widths = [part.sharding.width(rank) for part in parts]
        widths_on_wire = [*widths, *[2 * 4 // precision.itemsize] * len(counted)]
        sending = parts + counted
        lengths = [
            [p.peer_counts[r] * w for p, w in zip(sending, widths_on_wire)] for r in range(size)
        ]
        received = [torch.cat(part_grads) for part_grads in exchange(world, outgoing, lengths)]
        grads = [precision.widen(part_grads) for part_grads in received[: len(parts)]]
        grads += [precision.from_exact(part_grads) for part_grads in received[len(parts) :]]
        return [
            part_grads.view(sum(p.peer_counts), width)
            for p, width, part_grads in zip(sending, [*widths, *[2] * len(counted)], grads)
        ]

    def _used(self, parts: list[TableTrip]) -> dict[int, Tensor]:
        """A mask [n] of the vectors of this rank that had a gradient, by the number of the part.

        Rows that got no gradient are not updated.
        """
        size = self.world.size
        numbers = [k for k, part in enumerate(parts) if not part.placed.counted]
        uncounted = [parts[k] for k in numbers]
        used = []
        for part in uncounted:
            unused = part.unused()
            used_rows = torch.ones(part.num_vectors, dtype=torch.uint8, device=self.device)
            used.append(used_rows if unused is None else (~unused).to(torch.uint8))
        outgoing = [[u[part.outgoing(r)] for u, part in zip(used, uncounted)] for r in range(size)]
        lengths = [[part.peer_counts[r] for part in uncounted] for r in range(size)]
        received = exchange(self.world, outgoing, lengths)
        return {k: torch.cat(one).bool() for k, one in zip(numbers, received)}
