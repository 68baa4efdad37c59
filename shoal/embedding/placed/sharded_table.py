"""ShardedTable: one table's rows spread over the ranks; each rank's leaf holds only its own.

A store whose every call is made by all ranks together. Models look its rows up through ShardedRows
(shoal.embedding.placed.sharded), which lets all tables travel together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from shoal.config.tiers import TiersSection
from shoal.embedding.leaves.admission import Admission, Filter, Pending, Shrink
from shoal.embedding.leaves.leaf import COUNTERS, Leaf, fits, state_shapes_of
from shoal.embedding.leaves.local import push_counted
from shoal.embedding.leaves.native import filter_facts_of
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.placed.placement import Layout
from shoal.embedding.placed.shard_leaf import SOME_ROWS, make_leaf
from shoal.embedding.service import RowGradients
from shoal.embedding.store import Every, Ids, Rows
from shoal.world.world import World

LAST_ID = torch.iinfo(torch.int64).max
COUNTER_FLOATS = {name: dtype.itemsize // 4 for name, dtype in COUNTERS.items()}


class ShardedTable:
    """The part of a table that this rank holds, and the way to the others' parts."""

    admission: Admission | None = None  # of each leaf, where ids are counted

    def __init__(
        self,
        layout: Layout,
        world: World,
        optimizer: RowOptimizer,
        seed: int,
        fused: bool = False,
        admission: Admission | None = None,
        tiers: TiersSection | None = None,
    ):
        self.table, self.layout, self.world = layout.table, layout, world
        self.optimizer, self.admission = optimizer, admission
        by_row = [name for name, kind in optimizer.state_names().items() if kind == "row"]
        if layout.placement.place == "column" and (by_row or optimizer.clip is not None):
            raise ValueError(
                f"table {self.table.name!r} is cut by columns, but {optimizer.name} looks at whole "
                "rows; place it by row"
            )
        self.leaf: Leaf | None = None
        if layout.holds(world.rank):
            self.leaf = make_leaf(
                layout, world.rank, optimizer, seed, world.device, fused, admission, tiers
            )
        self._step = 0

    def push_own(self, one: RowGradients, lr: float) -> None:
        """One optimizer step of rows that this rank holds, by the keys of its leaf."""
        self._step += 1
        if self.leaf is None:
            return
        if one.counts is None:
            self.leaf.push(one.ids, one.grads, lr)
        else:
            push_counted(self.leaf, one.ids, one.grads, lr, one.counts)

    def keys(self, ids: Ids) -> Tensor:
        """Keys of this rank's leaf, one by one."""
        if isinstance(ids, Every):
            return torch.arange(self.layout.shares[self.world.rank])
        return ids

    @property
    def counted(self) -> bool:
        """Whether it is counted how often ids come."""
        return self.admission is not None

    def decay(self, factor: float) -> None:
        """Multiply all counters, of rows and of ids without one."""
        if self.leaf is not None:
            self.leaf.decay(factor)

    def shrink(self, rule: Shrink) -> int:
        """Drop rows, each rank among its own; returns how many of the table went."""
        gone = 0 if self.leaf is None else self.leaf.shrink(rule)
        if self.layout.replicated:
            return gone
        return int(self.world.all_reduce(torch.tensor([gone], device=self.world.device)))

    def forget(self) -> None:
        """Drop every row of a growing table, each rank its own."""
        if self.leaf is not None:
            self.leaf.forget()

    @property
    def step(self) -> int:
        """How many times `push` was called."""
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        self._step = value
        if self.leaf is not None:
            self.leaf.step = value

    def restore(self, rows: Rows) -> None:
        """Take over those of the given rows that this rank holds."""
        if self.leaf is None:
            return
        layout, rank, ids = self.layout, self.world.rank, rows.ids
        if layout.grows:
            keys, mine = ids, self._mine(ids)
        else:
            low = 0 if layout.everyone else layout.bounds[rank]
            keys = layout.codes(ids) - low  # the padding id lies beyond every bound
            mine = (keys >= 0) & (keys < layout.shares[rank])
        chosen = mine.nonzero().squeeze(1)
        chosen = chosen[keys[chosen].argsort()]
        first, last = layout.columns[rank]
        state = {
            key: part[chosen] if part.dim() == 1 else part[chosen, first:last].contiguous()
            for key, part in rows.state.items()
        }
        values = rows.values[chosen, first:last].contiguous()
        self.leaf.restore(Rows(keys[chosen], values, state))

    def restore_pending(self, pending: Pending) -> None:
        """Take over those of the given counters of ids without a row that fall to this rank."""
        if self.leaf is None:
            return
        mine = self._mine(pending.ids)
        parts = [getattr(pending, key)[mine] for key in COUNTERS]
        self.leaf.restore_pending(Pending(pending.ids[mine], *parts))

    def _mine(self, ids: Tensor) -> Tensor:
        """Growing tables: which of the ids fall to this rank."""
        if self.layout.everyone:
            return torch.ones_like(ids, dtype=torch.bool)
        return self.layout.owners(ids) == self.world.rank

    def mark(self) -> int:
        """All ranks: a point in time that `export` can take up from; 0: one of them cannot."""
        mine = 1 if self.leaf is None else self.leaf.mark()
        marks = self.world.stack(torch.tensor([mine], device=self.world.device))
        return mine if bool(marks.all()) else 0

    def export(self, chunk_rows: int = 1 << 20, since: int | None = None) -> Iterator[Rows]:
        """Rank 0 has the table chunk by chunk, by ascending id; the others only take part.

        since: a mark of this rank; only rows that changed after it.
        """
        some = {} if since is None else {"since": since}
        if self.layout.replicated:
            if self.world.is_main and self.leaf is not None:
                yield from self.leaf.export(chunk_rows, **some)
            return
        ids, floats, places = self._own() if since is None else self._changed(since)
        widths = [sum(self._widths(rank).values()) for rank in range(self.world.size)]
        ranges: Iterable[slice]
        if self.layout.grows or since is not None:
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
        """As `export`: counters of the ids without a row."""
        held: Iterable[Pending] = []
        if self.leaf is not None:
            held = self.leaf.export_pending(chunk_rows)
        if self.layout.replicated:
            if self.world.is_main:
                yield from held
            return
        widths = list(COUNTER_FLOATS.values())
        own = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, sum(widths))]
        for some in held:
            own[0].append(some.ids)
            own[1].append(torch.cat([_floats(getattr(some, key)) for key in COUNTERS], 1))
        ids, floats = torch.cat(own[0]), torch.cat(own[1])
        for part in self._next_of_all(ids, -(-chunk_rows // self.world.size)):
            pieces = self._at_rank_0(ids[part], floats[part], [sum(widths)] * self.world.size)
            everyones = torch.cat([ids for ids, _ in pieces])
            if self.world.is_main and len(everyones):
                order = everyones.argsort()
                columns = torch.cat([floats for _, floats in pieces])[order].split(widths, 1)
                parts = [_column(one, dtype) for one, dtype in zip(columns, COUNTERS.values())]
                yield Pending(everyones[order], *parts)

    @property
    def filter_facts(self) -> tuple[int, int]:
        """Bytes and layout of each leaf's Bloom filter; (0, 0) where ids are counted exactly."""
        return filter_facts_of(self.admission)  # a rank without a leaf knows it too

    def filter_fits(self, part: Filter) -> bool:
        """Whether a part is of one of these filters; one that cannot be is refused."""
        return fits(part, self.table.name, self.admission, self.filter_facts)

    def restore_filter(self, part: Filter) -> None:
        """Take over a part of the Bloom filter of this rank's leaf."""
        if self.leaf is not None:
            self.leaf.restore_filter(part)

    def export_filter(self, chunk_bytes: int = 1 << 28) -> Iterator[Filter]:
        """As `export`: the Bloom filter of every leaf, one after the other."""
        world, (size, layout) = self.world, self.filter_facts
        held: Iterator[Filter] = iter(())
        if self.leaf is not None:
            held = self.leaf.export_filter(chunk_bytes)
        if self.layout.replicated:
            if world.is_main:
                yield from held
            return
        nothing = torch.empty(0, dtype=torch.uint8, device=world.device)
        for rank in filter(self.layout.holds, range(world.size)):
            for start in range(0, size, chunk_bytes):
                mine = next(held).counters.to(world.device) if rank == world.rank else nothing
                sent, received = [0] * world.size, [0] * world.size
                sent[0] = len(mine)
                if world.is_main:
                    received[rank] = min(chunk_bytes, size - start)
                counters = world.all_to_all(mine, sent, received).cpu()
                if world.is_main:
                    yield Filter(counters, start, size, layout, self.layout.share(rank))

    def state_shapes(self, n: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every piece of state, and of every counter, of a chunk of n rows."""
        return state_shapes_of(self.optimizer, self.table.dim, n, self.counted)

    def _next_of_all(self, ids: Tensor, most: int) -> Iterator[slice]:
        """Parts of everybody's ids, at most so many of each rank's, that ascend over all ranks.

        Nobody knows the ids of the others, so they agree how far to go.
        """
        start, end = 0, -1
        while end < LAST_ID:
            reach = int(ids[start + most - 1]) if start + most < len(ids) else LAST_ID
            end = int(self.world.stack(torch.tensor([reach], device=self.world.device)).min())
            stop = int(torch.searchsorted(ids, end, right=True))
            yield slice(start, stop)
            start = stop

    def _own(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ids of this rank's leaf, ascending; its values and state side by side, and whose they
        are: row places[k] of the floats belongs to ids[k].
        """
        count = 0
        if self.leaf is not None:
            count = len(self.leaf)
        ids = torch.empty(count, dtype=torch.int64)
        floats = torch.empty(count, sum(self._widths(self.world.rank).values()))
        start = 0
        for rows in [] if self.leaf is None else self.leaf.export(SOME_ROWS):
            stop = start + len(rows.ids)
            ids[start:stop] = rows.ids
            parts = [rows.values, *map(_floats, rows.state.values())]
            torch.cat(parts, 1, out=floats[start:stop])
            start = stop
        if not self.layout.grows and count:
            ids = self.layout.ids(self.world.rank)
        places = ids.argsort()
        return ids[places], floats, places

    def _changed(self, since: int) -> tuple[Tensor, Tensor, Tensor]:
        """As `_own`, of rows that changed after a mark."""
        ids = [torch.empty(0, dtype=torch.int64)]
        floats = [torch.empty(0, sum(self._widths(self.world.rank).values()))]
        if self.leaf is not None:
            for rows in self.leaf.export(SOME_ROWS, **{"since": since}):
                ids.append(rows.ids)
                floats.append(torch.cat([rows.values, *map(_floats, rows.state.values())], 1))
        keys = torch.cat(ids)
        changed = self.layout.ids(self.world.rank)[keys] if not self.layout.grows else keys
        places = changed.argsort()
        return changed[places], torch.cat(floats), places

    def _widths(self, rank: int) -> dict[str, int]:
        """Floats of a row's values, of each piece of its state and its counters, on a rank."""
        width = self.layout.width(rank)
        kinds = {"values": "dim", **self.optimizer.state_names()}
        widths = {name: width if kind == "dim" else 1 for name, kind in kinds.items()}
        return widths | (COUNTER_FLOATS if self.counted else {})

    def _at_rank_0(
        self, ids: Tensor, floats: Tensor, widths: list[int]
    ) -> list[tuple[Tensor, Tensor]]:
        """Everybody's ids [n] and floats [n, widths[rank]], at rank 0."""
        world, device = self.world, self.world.device
        counts = world.stack(torch.tensor([len(ids)], device=device)).view(-1).tolist()
        nothing = [0] * (world.size - 1)
        received = counts if world.is_main else [0] * world.size
        lengths = [n * width for n, width in zip(received, widths)]
        all_ids = world.all_to_all(ids.to(device), [len(ids), *nothing], received)
        flat = floats.reshape(-1).to(device)
        all_floats = world.all_to_all(flat, [flat.numel(), *nothing], lengths)
        parts = zip(all_ids.cpu().split(received), all_floats.cpu().split(lengths))
        return [(some, piece.view(len(some), w)) for (some, piece), w in zip(parts, widths)]

    def _join(self, pieces: list[tuple[Tensor, Tensor]], chunk_rows: int) -> Iterator[Rows]:
        """Whole rows in order of id, from everybody's pieces."""
        if not any(len(some) for some, _ in pieces):
            return
        shapes = self.state_shapes(0)
        names = ["values", *shapes]
        parts: list[list[Tensor]] = [[] for _ in names]
        for rank, (_, floats) in enumerate(pieces):
            for k, part in enumerate(floats.split(list(self._widths(rank).values()), 1)):
                parts[k].append(part)
        if self.layout.placement.place == "column":
            ids = pieces[-1][0]  # with fewer columns than ranks, the first ranks have none
            whole = [torch.cat([piece for piece in part if len(piece)], 1) for part in parts]
        else:
            ids = torch.cat([some for some, _ in pieces])
            order = ids.argsort()
            ids = ids[order]
            whole = [torch.cat(part)[order] for part in parts]
        columns = dict(zip(names, whole))
        for name, (shape, dtype) in shapes.items():
            if len(shape) == 1:
                columns[name] = _column(columns[name], dtype)
        for start in range(0, len(ids), chunk_rows):
            some = {k: v[start : start + chunk_rows].contiguous() for k, v in columns.items()}
            values = some.pop("values")
            yield Rows(ids[start : start + chunk_rows], values, some)


def _floats(part: Tensor) -> Tensor:
    """One piece of state of n rows as float32 [n, width]; integers as their bits, two floats."""
    if part.dtype == torch.int64:
        part = part.view(torch.float32)
        return part.view(-1, 2)
    return part.view(len(part), -1)


def _column(part: Tensor, dtype: torch.dtype) -> Tensor:
    """The opposite, of what has one number a row: [n]."""
    return part.contiguous().view(dtype).squeeze(1)
