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
from shoal.distributed.world import Arriving, World, pack, unpack
from shoal.embedding.engines.row_engine import pull_all, push_counted
from shoal.embedding.output_table import InPlaceRows
from shoal.embedding.placements.groups import RankGroups
from shoal.embedding.placements.row_requests import HEAD, Head, Requester, WirePrecision
from shoal.embedding.placements.sharded_table import ShardedTable
from shoal.embedding.placements.trips import RoutedRows, TableTrip, Trip
from shoal.embedding.rows.admission import apply_row_rules
from shoal.embedding.rows.bags import join_bags
from shoal.embedding.rows.store import Every, Store
from shoal.embedding.service import Collected, Gradients, Lookup, RowGradients


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
        for part, pieces in zip(travelling, world.exchange(outgoing, lengths)):
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


class ShardedRows(RoutedRows[Route]):
    """Engines of all ranks, read and updated by their owners. Every call is made by all ranks."""

    def __init__(
        self,
        world: World,
        tables: Mapping[str, ShardedTable],
        rules: Mapping[str, RowRules] | None = None,
        groups: RankGroups | None = None,
        precision: WirePrecision | None = None,
    ):
        """world: the ranks that share the tables; groups: where others hold the same rows."""
        super().__init__(tables, rules, world.device)
        self.world, self.sharded = world, dict(tables)
        self.groups = groups
        self.whole = world if groups is None else groups.whole  # all ranks
        self.precision = precision or WirePrecision()
        self._lists: set[int] = set()  # fields of the batch in training that are lists
        self._read: dict[int, bool] = {}  # fields read in this step: always pooled?
        self._pooled: dict[int, bool] = {}  # by field: pooled when it was last read?

    @property
    def stores(self) -> dict[str, Store]:
        return dict(self.sharded)

    def memory_of(self, name: str) -> int:
        engine = self.sharded[name].engine
        return 0 if engine is None else engine.memory  # None: other ranks have all of them

    def _everywhere(self, missing: bool) -> bool:
        vote = torch.tensor([float(missing)], device=self.device)
        return float(self.whole.all_reduce(vote)) == 0

    def _rows_in_place(self, name: str) -> InPlaceRows | None:
        table = self.sharded[name]
        return (
            InPlaceRows(table.engine, split=(table.sharding, self.world))
            if table.sharding.cut_by_rows
            else None
        )

    # ---- before and while a model computes ------------------------------------------------------

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

    def _record_reads(self, lookups: Sequence[Lookup]) -> None:
        super()._record_reads(lookups)
        for lookup in lookups:
            if lookup.field is not None:
                pooled = lookup.bags is not None
                self._read[lookup.field] = self._read.get(lookup.field, True) and pooled

    def _pull_held(self, lookups: Sequence[Lookup]) -> dict[int, Tensor]:
        """Rows of lookups in replicated tables, which no other rank is needed for."""
        rows: dict[int, Tensor] = {}
        for number, lookup in enumerate(lookups):
            table = self.sharded[lookup.table]
            if table.sharding.replicated:
                assert table.engine is not None
                flat = pull_all([table.engine], [lookup.flat], bags=[lookup.bags])[0]
                rowwise = lookup.bags is not None or isinstance(lookup.ids, Every)
                shape = flat.shape[:1] if rowwise else lookup.ids.shape  # type: ignore[union-attr]
                rows[number] = flat.to(self.device).view(*shape, flat.shape[1])
        return rows

    def _end_step(self) -> list[Route]:
        unread = dict.fromkeys(self._lists - self._pooled.keys(), False)
        self._pooled |= unread | self._read
        self._lists, self._read = set(), {}
        return super()._end_step()

    def _trip(self, lookups: Sequence[Lookup]) -> Route:
        return Route(self.world, self.sharded, lookups, self.precision)

    # ---- after backward -------------------------------------------------------------------------

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
        flat = self.whole.all_reduce(flat)
        gathered = self._send_all(self._parts(self._end_step()), some_unused=float(flat[-1]) > 0)
        rows = {
            name: self._joined(name, row_gradients + outputs.get(name, []))
            for name, row_gradients in gathered.items()
        }
        if self.groups is not None:
            rows = self.groups.agreed(rows, self.sharded, self.precision)
        return Collected(flat[:-1], rows)

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
            table = self.sharded[name]
            if table.engine is not None:
                grads = row_gradients.scaled(scale).grads
                table.engine.step = table.step
                push_counted(
                    table.engine,
                    row_gradients.ids,
                    grads,
                    lr,
                    row_gradients.counts,
                    row_gradients.bags,
                )
            table.step += 1
        for name, rules in self.rules.items():
            apply_row_rules(self.sharded[name], rules, self.sharded[name].sharding.num_shares)
        self._step_outputs(lr, scale)
        if self.groups is not None:
            self.groups.stepped(self.sharded)

    def synchronize(self) -> None:
        super().synchronize()
        if self.groups is not None:
            self.groups.agree(self.sharded)

    def saved(self) -> Iterator[tuple[str, Store]]:
        """The stores of the first group; the other groups hold the same rows."""
        if self.groups is None or self.groups.peers.is_main:
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
        received = [torch.cat(part_grads) for part_grads in world.exchange(outgoing, lengths)]
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
        received = self.world.exchange(outgoing, lengths)
        return {k: torch.cat(one).bool() for k, one in zip(numbers, received)}
