"""ShardedTable: one table's rows spread over the ranks; each rank's engine holds only its own.

A store whose every call is made by all ranks together. Models look its rows up through ShardedRows
(shoal.embedding.placements.sharded), which lets all tables travel together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from shoal.distributed.world import World
from shoal.embedding.engines.counted_engine import CountedEngine
from shoal.embedding.engines.native import filter_facts_of
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.engines.saved_rows import COUNTERS, state_shapes_of
from shoal.embedding.placements.shard_engine import SOME_ROWS
from shoal.embedding.rows.admission import Admission, Filter, Pending, Shrink
from shoal.embedding.rows.placement import Sharding
from shoal.embedding.rows.store import Every, Ids, Rows
from shoal.optimizers.row_optimizer import RowOptimizer

LAST_ID = torch.iinfo(torch.int64).max
COUNTER_FLOATS = {name: dtype.itemsize // 4 for name, dtype in COUNTERS.items()}


class ShardedTable:
    """The part of a table that this rank holds, and the way to the others' parts."""

    def __init__(
        self,
        sharding: Sharding,
        world: World,
        optimizer: RowOptimizer,
        engine: RowEngine | None,
        admission: Admission | None = None,
    ):
        """engine: this rank's rows, None where it has none; admission: of every rank's engine."""
        self.table, self.sharding, self.world = sharding.table, sharding, world
        self.optimizer, self.engine, self.admission = optimizer, engine, admission
        self.counted = admission is not None  # whether it is counted how often ids come
        self.step = 0  # how many steps its rows have had; set on restore

    def keys(self, ids: Ids) -> Tensor:
        """Ids as keys of this rank's engine; every row as the range of its keys."""
        if isinstance(ids, Every):
            return torch.arange(self.sharding.shares[self.world.rank])
        return ids

    @property
    def num_held(self) -> int | None:
        """Rows of a fixed table that this rank holds; None: it grows."""
        return None if self.sharding.grows else self.sharding.shares[self.world.rank]

    @property
    def counted_engine(self) -> CountedEngine | None:
        """This rank's engine of a table whose ids are counted; None: the rank has none."""
        assert self.engine is None or isinstance(self.engine, CountedEngine)
        return self.engine

    def decay(self, factor: float) -> None:
        if self.counted_engine is not None:
            self.counted_engine.decay(factor)

    def shrink(self, rule: Shrink) -> int:
        """Drop rows, each rank among its own; returns how many of the table went."""
        num_dropped = 0 if self.engine is None else self.engine.shrink(rule)
        if self.sharding.replicated:
            return num_dropped
        return int(self.world.all_reduce(torch.tensor([num_dropped], device=self.world.device)))

    def forget(self) -> None:
        if self.engine is not None:
            self.engine.forget()

    def restore(self, rows: Rows) -> None:
        if self.engine is None:
            return
        sharding, rank, ids = self.sharding, self.world.rank, rows.ids
        if sharding.grows:
            keys, is_mine = ids, self._mine(ids)
        else:
            low = 0 if sharding.everyone else sharding.bounds[rank]
            keys = sharding.codes(ids) - low  # the padding id lies beyond every bound
            is_mine = (keys >= 0) & (keys < sharding.shares[rank])
        chosen = is_mine.nonzero().squeeze(1)
        chosen = chosen[keys[chosen].argsort()]
        first, last = sharding.columns[rank]
        state = {
            key: part[chosen] if part.dim() == 1 else part[chosen, first:last].contiguous()
            for key, part in rows.state.items()
        }
        values = rows.values[chosen, first:last].contiguous()
        self.engine.restore(Rows(keys[chosen], values, state))

    def restore_pending(self, pending: Pending) -> None:
        if self.counted_engine is None:
            return
        is_mine = self._mine(pending.ids)
        parts = [getattr(pending, key)[is_mine] for key in COUNTERS]
        self.counted_engine.restore_pending(Pending(pending.ids[is_mine], *parts))

    def _mine(self, ids: Tensor) -> Tensor:
        """Growing tables: which of the ids fall to this rank."""
        if self.sharding.everyone:
            return torch.ones_like(ids, dtype=torch.bool)
        return self.sharding.owners(ids) == self.world.rank

    def mark(self) -> int:
        """A point in time for `export` to continue from; 0: some rank cannot. All ranks call it."""
        own_mark = 1 if self.engine is None else self.engine.mark()
        marks = self.world.stack(torch.tensor([own_mark], device=self.world.device))
        return own_mark if bool(marks.all()) else 0

    def export(self, chunk_rows: int = 1 << 20, since: int | None = None) -> Iterator[Rows]:
        """Yield the table on rank 0 in chunks by ascending id; other ranks only take part.

        since: a mark of this rank; only rows that changed after it.
        """
        export_options = {} if since is None else {"since": since}
        if self.sharding.replicated:
            if self.world.is_main and self.engine is not None:
                yield from self.engine.export(chunk_rows, **export_options)
            return
        ids, floats, places = self._sorted_rows(export_options)
        widths = [sum(self._widths(rank).values()) for rank in range(self.world.size)]
        ranges: Iterable[slice]
        if self.sharding.grows or since is not None:
            ranges = self._next_of_all(ids, -(-chunk_rows // self.world.size))
        else:
            assert self.table.rows is not None
            steps = range(0, self.table.rows + chunk_rows, chunk_rows)
            bounds = torch.searchsorted(ids, torch.tensor(steps)).tolist()
            ranges = [slice(a, b) for a, b in pairwise(bounds)]
        for part in ranges:
            pieces = self._at_rank_0(ids[part], floats[places[part]], widths)
            if self.world.is_main:
                yield from self._join(pieces, chunk_rows)

    def export_pending(self, chunk_rows: int = 1 << 20) -> Iterator[Pending]:
        """Yield on rank 0 the counters of ids without a row, in chunks; other ranks take part."""
        own_pending: Iterable[Pending] = []
        if self.counted_engine is not None:
            own_pending = self.counted_engine.export_pending(chunk_rows)
        if self.sharding.replicated:
            if self.world.is_main:
                yield from own_pending
            return
        widths = list(COUNTER_FLOATS.values())
        own_columns = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, sum(widths))]
        for pending in own_pending:
            own_columns[0].append(pending.ids)
            own_columns[1].append(
                torch.cat([_floats(getattr(pending, key)) for key in COUNTERS], 1)
            )
        ids, floats = torch.cat(own_columns[0]), torch.cat(own_columns[1])
        for part in self._next_of_all(ids, -(-chunk_rows // self.world.size)):
            pieces = self._at_rank_0(ids[part], floats[part], [sum(widths)] * self.world.size)
            all_ids, joined = _by_id(pieces)
            if len(all_ids):
                columns = zip(joined.split(widths, 1), COUNTERS.values())
                yield Pending(all_ids, *(_column(one, dtype) for one, dtype in columns))

    @property
    def filter_facts(self) -> tuple[int, int]:
        return filter_facts_of(self.admission)  # a rank without an engine knows it too

    def restore_filter(self, part: Filter) -> None:
        if self.counted_engine is not None:
            self.counted_engine.restore_filter(part)

    def export_filter(self, chunk_bytes: int = 1 << 28) -> Iterator[Filter]:
        """Yield on rank 0 the Bloom filter of every engine, one after the other, in chunks."""
        world, (size, layout) = self.world, self.filter_facts
        own_filter: Iterator[Filter] = iter(())
        if self.counted_engine is not None:
            own_filter = self.counted_engine.export_filter(chunk_bytes)
        if self.sharding.replicated:
            if world.is_main:
                yield from own_filter
            return
        nothing = torch.empty(0, dtype=torch.uint8, device=world.device)
        for rank in filter(self.sharding.holds, range(world.size)):
            for start in range(0, size, chunk_bytes):
                own_counters = (
                    next(own_filter).counters.to(world.device) if rank == world.rank else nothing
                )
                sent, received = [0] * world.size, [0] * world.size
                sent[0] = len(own_counters)
                if world.is_main:
                    received[rank] = min(chunk_bytes, size - start)
                counters = world.all_to_all(own_counters, sent, received).cpu()
                if world.is_main:
                    yield Filter(counters, start, size, layout, self.sharding.share(rank))

    def state_shapes(self, n: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return state_shapes_of(self.optimizer, self.table.dim, n, self.counted)

    def _next_of_all(self, ids: Tensor, max_rows: int) -> Iterator[slice]:
        """Slices of this rank's ids, at most `max_rows` long, that ascend over all ranks.

        No rank knows the ids of the others, so they agree on the last id of each slice.
        """
        start, end = 0, -1
        while end < LAST_ID:
            reach = int(ids[start + max_rows - 1]) if start + max_rows < len(ids) else LAST_ID
            end = int(self.world.stack(torch.tensor([reach], device=self.world.device)).min())
            stop = int(torch.searchsorted(ids, end, right=True))
            yield slice(start, stop)
            start = stop

    def _sorted_rows(self, export_options: dict[str, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Ids of this rank's engine, ascending; its values and state side by side; their places.

        Row places[k] of the floats belongs to ids[k]. export_options: as engines take them.
        """
        max_rows = 0 if self.engine is None else len(self.engine)
        keys = torch.empty(max_rows, dtype=torch.int64)
        floats = torch.empty(max_rows, sum(self._widths(self.world.rank).values()))
        count = 0
        for rows in [] if self.engine is None else self.engine.export(SOME_ROWS, **export_options):
            part = slice(count, count + len(rows.ids))
            keys[part] = rows.ids
            torch.cat([rows.values, *map(_floats, rows.state.values())], 1, out=floats[part])
            count = part.stop
        ids = keys[:count]
        if not self.sharding.grows:
            ids = self.sharding.ids(self.world.rank)[ids]
        places = ids.argsort()
        return ids[places], floats, places

    def _split(self, floats: Tensor, rank: int) -> dict[str, Tensor]:
        """Values, pieces of state and counters of rows [n, width] of a rank, by name."""
        widths = self._widths(rank)
        return dict(zip(widths, floats.split(list(widths.values()), 1)))

    def _widths(self, rank: int) -> dict[str, int]:
        """Floats of a row's values, of each piece of its state and its counters, on a rank."""
        width = self.sharding.width(rank)
        counters = COUNTER_FLOATS if self.counted else {}
        return {"values": width, **self.optimizer.widths(width), **counters}

    def _at_rank_0(
        self, ids: Tensor, floats: Tensor, widths: list[int]
    ) -> list[tuple[Tensor, Tensor]]:
        """Ids [n] and floats [n, widths[rank]] of every rank, at rank 0."""
        world, device = self.world, self.world.device
        counts = world.stack(torch.tensor([len(ids)], device=device)).view(-1).tolist()
        nothing = [0] * (world.size - 1)
        received = counts if world.is_main else [0] * world.size
        lengths = [n * width for n, width in zip(received, widths)]
        all_ids = world.all_to_all(ids.to(device), [len(ids), *nothing], received)
        flat = floats.reshape(-1).to(device)
        all_floats = world.all_to_all(flat, [flat.numel(), *nothing], lengths)
        parts = zip(all_ids.cpu().split(received), all_floats.cpu().split(lengths))
        return [
            (rank_ids, piece.view(len(rank_ids), w)) for (rank_ids, piece), w in zip(parts, widths)
        ]

    def _join(self, pieces: list[tuple[Tensor, Tensor]], chunk_rows: int) -> Iterator[Rows]:
        """Whole rows in order of id, from the pieces of all ranks."""
        if not any(len(state) for state, _ in pieces):
            return
        if self.sharding.placement.place == "column":
            ids = pieces[-1][0]  # with fewer columns than ranks, the first ranks have none
            parts = [self._split(floats, r) for r, (ids, floats) in enumerate(pieces) if len(ids)]
            columns = {
                name: torch.cat([rank_columns[name] for rank_columns in parts], 1)
                for name in parts[0]
            }
        else:
            ids, floats = _by_id(pieces)
            columns = self._split(floats, 0)
        for name, (shape, dtype) in self.state_shapes(0).items():
            if len(shape) == 1:
                columns[name] = _column(columns[name], dtype)
        for start in range(0, len(ids), chunk_rows):
            state = {k: v[start : start + chunk_rows].contiguous() for k, v in columns.items()}
            values = state.pop("values")
            yield Rows(ids[start : start + chunk_rows], values, state)


def _by_id(pieces: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Ids [n] and floats [n, width] of all ranks, in order of id."""
    ids = torch.cat([some for some, _ in pieces])
    order = ids.argsort()
    return ids[order], torch.cat([floats for _, floats in pieces])[order]


def _floats(part: Tensor) -> Tensor:
    """One piece of state of n rows as float32 [n, width]; integers as their bits, two floats."""
    if part.dtype == torch.int64:
        part = part.view(torch.float32)
        return part.view(-1, 2)
    return part.view(len(part), -1)


def _column(part: Tensor, dtype: torch.dtype) -> Tensor:
    """One number a row [n] from its floats [n, width] (reverses `_floats`)."""
    # A copy: int64 must not begin at an odd float.
    return part.clone(memory_format=torch.contiguous_format).view(dtype).squeeze(1)
