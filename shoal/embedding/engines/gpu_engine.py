"""GpuEngine: a table in the memory of a GPU, by the kernels of GpuTables.

Tables of one width that are made together share a group, and their rows are read and updated in one
launch by `pull_many` and `push_many`. Nothing waits for the device but what goes to the host: an id
outside its table is refused some steps later, at the latest by `export`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from shoal.embedding.engines.gpu_cache import CachedGpuTables
from shoal.embedding.engines.gpu_growing import GrowingGpuTables
from shoal.embedding.engines.gpu_tables import GpuTables
from shoal.embedding.engines.recordable import Recordable
from shoal.embedding.engines.row_engine import AdamRows, RowEngine
from shoal.embedding.rows.admission import Shrink
from shoal.embedding.rows.bags import Bags, join_bags
from shoal.embedding.rows.store import Every, Ids, Rows
from shoal.embedding.rows.table import Table
from shoal.kernels.gpu.lookup import TableLookup
from shoal.kernels.gpu.segments import Segments
from shoal.optimizers.row_optimizer import RowOptimizer


def make_gpu_engines(
    tables: Sequence[Table],
    optimizer: RowOptimizer,
    seed: int,
    device: torch.device | str,
    fused: bool = False,
) -> list[GpuEngine]:
    """An engine for each table; those of one width and type lie side by side.

    fused: rows that a softmax alone reads may be updated by it.
    """
    groups: dict[tuple[int, bool, bool, bool], list[int]] = {}
    for k, table in enumerate(tables):
        group_key = table.dim, table.half, table.rows is None, table.whole
        groups.setdefault(group_key, []).append(k)
    engines: dict[int, GpuEngine] = {}
    for (_, _, grows, _), members in groups.items():
        kind = GrowingGpuTables if grows else GpuTables
        group = kind([tables[k] for k in members], optimizer, seed, device)
        engines.update({k: GpuEngine(group, number, fused) for number, k in enumerate(members)})
    return [engines[k] for k in range(len(tables))]


class GpuEngine(RowEngine, Recordable):
    """One table of a group."""

    def __init__(self, group: GpuTables, number: int, fused: bool = False):
        table = group.tables[number]
        super().__init__(table, group.optimizer, group.seed)
        self.group = group
        self.number = number
        self.device = group.device
        self.fused = fused

    def __len__(self) -> int:
        return self.group.count(self.number)

    @cached_property
    def _every_segments(self) -> Segments:
        """Every row once: the same in every step that updates all of them."""
        return self.group.sort(self._look_up(self._every))

    @property
    def recordable(self) -> bool:
        """A growing table is not: it may have to move its rows between two steps."""
        return not self.group.grows

    @property
    def offloaded(self) -> bool:  # type: ignore[override]
        """Whether rows may be in host memory."""
        return self.group.cached

    def prefetch(self, ids: Sequence[Tensor]) -> None:
        """A hint: these ids [n_k] are used by the step after the next one."""
        if isinstance(self.group, CachedGpuTables):
            self.group.prefetch(ids)

    def stage(self, ids: Sequence[Tensor]) -> None:
        """Before a recorded step is replayed: put the rows of all its ids [n_k] where it reads."""
        if isinstance(self.group, CachedGpuTables):
            self.group.stage(ids)

    def view_rows(self) -> Tensor | None:
        whole = self.table.rows is not None and not self.table.half
        return self.group.whole(self.number) if whole and not self.group.cached else None

    def adam_rows(self) -> AdamRows | None:
        values, optimizer = self.view_rows(), self.optimizer
        by_adam = optimizer.name in ("adam", "adamw") and optimizer.clip is None
        if values is None or not (self.fused and by_adam):
            return None
        first = self.group.first_rows[self.number]
        state = self.group.arena.state
        own_rows = slice(first, first + len(values))
        return AdamRows(
            values, state["exp_avg"][own_rows], state["exp_avg_sq"][own_rows], self.group.numbers
        )

    def pull(self, ids: Ids) -> Tensor:
        whole = self.view_rows() if isinstance(ids, Every) else None
        return self.pull_many([self], [ids])[0] if whole is None else whole.clone()

    @classmethod
    def pull_many(
        cls,
        engines: Sequence[GpuEngine],
        ids: Sequence[Ids],
        learn: bool = False,
        bags: Sequence[Bags | None] = (),
    ) -> list[Tensor]:
        bags = bags or [None] * len(engines)
        result: dict[int, Tensor] = {}
        for group, members in _by_group(engines).items():
            in_one_launch = not any(
                isinstance(ids[k], Every) for k in members
            )  # pushed in one launch, too
            for k in members:
                if isinstance(ids[k], Every) and engines[k].view_rows() is not None:
                    result[k] = engines[k].pull(ids[k])
            members = [k for k in members if k not in result]
            if not members:
                continue
            flat = [engines[k].ids_inside(ids[k]) for k in members]
            counts = [0] * len(group.tables)
            for k, part in zip(members, flat):
                counts[engines[k].number] += len(part)
            member_bags = _flat_bags(
                [engines[k] for k in members], flat, [bags[k] for k in members]
            )
            rows = group.pull(
                group.look_up(_cat(flat), counts), learn and in_one_launch, join_bags(member_bags)
            )
            sizes = [n if own is None else len(own) for n, own in member_bags]
            result.update(zip(members, rows.split(sizes)))
        return [result[k] for k in range(len(engines))]

    @classmethod
    def push_many(
        cls,
        engines: Sequence[GpuEngine],
        ids: Sequence[Ids],
        grads: Sequence[Tensor],
        lr: float,
        pulled: bool = False,
        bags: Sequence[Bags | None] = (),
    ) -> None:
        bags = bags or [None] * len(engines)
        for group, members in _by_group(engines).items():
            whole = any(isinstance(ids[k], Every) for k in members)
            if whole or len({engines[k].step for k in members}) > 1:  # each has its own numbers
                for k in members:
                    engines[k]._push_alone(ids[k], grads[k], lr, bags[k])
                continue
            flat = [engines[k].ids_inside(ids[k]) for k in members]
            member_bags = _flat_bags(
                [engines[k] for k in members], flat, [bags[k] for k in members]
            )
            sizes = [n if own is None else len(own) for n, own in member_bags]
            parts = [engines[k].flat_grads(grads[k], size) for k, size in zip(members, sizes)]
            counts = [0] * len(group.tables)
            for k, part in zip(members, flat):
                counts[engines[k].number] = len(part)
            first, ahead = engines[members[0]], group.take_sorted(counts)
            if pulled and ahead is not None:
                first._begin_unless_recorded(lr)
                group.apply(ahead.segments, _cat(parts))
            else:
                lookup = group.look_up(_cat(flat), counts)
                first._push(lookup, _cat(parts), lr, join_bags(member_bags))
            for k in members:
                engines[k].step = engines[members[0]].step

    @classmethod
    def begin_many(cls, engines: Sequence[GpuEngine], lr: float) -> None:
        for members in _by_group(engines).values():
            together = [engines[k] for k in members]
            if len({engine.step for engine in together}) > 1:
                raise ValueError(  # the numbers of a step are the group's
                    f"table {together[0].table.name!r} and others of its width had different "
                    "numbers of steps, so theirs cannot be recorded: set strategy.graph=false"
                )
            together[0].begin(lr)
            for engine in together:
                engine.step = together[0].step

    def push(self, ids: Ids, grads: Tensor, lr: float, counts: Tensor | None = None) -> None:
        self.flat_counts(counts, len(grads))  # none: its ids are not counted
        self._push_alone(ids, grads, lr)

    def pull_bags(self, ids: Tensor, bags: Bags) -> Tensor:
        return self.pull_many([self], [ids], bags=[bags])[0]

    def push_bags(
        self, ids: Tensor, grads: Tensor, bags: Bags, lr: float, counts: Tensor | None = None
    ) -> None:
        self.flat_counts(counts, ids.numel())  # none: its ids are not counted
        self._push_alone(ids, grads, lr, bags)

    def _push_alone(self, ids: Ids, grads: Tensor, lr: float, bags: Bags | None = None) -> None:
        self.group.forget_sorted()
        flat = self.ids_inside(ids)
        bags = None if bags is None else self.flat_bags(bags, len(flat))
        grads = self.flat_grads(grads, len(flat) if bags is None else len(bags))
        if isinstance(ids, Every):
            self._begin_unless_recorded(lr, self._look_up(flat))
            if not isinstance(self.group, CachedGpuTables):
                self.group.apply(self._every_segments, grads)
                return
            for chunk_ids, part in zip(
                flat.split(at_once := self.group.at_once), grads.split(at_once)
            ):
                self.group.apply(self.group.sort(self._look_up(chunk_ids)), part)
            return
        self._push(self._look_up(flat), grads, lr, bags)

    def begin(self, lr: float, lookup: TableLookup | None = None) -> None:
        """Count a step; also called before each replay of a recorded push, which runs no Python."""
        self.group.step = self._step
        self.group.begin(lr, lookup)
        self._step = self.group.step

    def _push(self, lookup: TableLookup, grads: Tensor, lr: float, bags: Bags | None) -> None:
        self._begin_unless_recorded(lr, lookup)
        self.group.sort_and_apply(lookup, grads, bags)

    def _begin_unless_recorded(self, lr: float, lookup: TableLookup | None = None) -> None:
        if self.device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            self.begin(lr, lookup)
        elif self.group.grows:
            raise ValueError(
                f"table {self.table.name!r} grows, so its steps cannot be recorded: give it a "
                "number of rows, or set strategy.graph=false"
            )

    def _look_up(self, ids: Tensor) -> TableLookup:
        counts = [0] * len(self.group.tables)
        counts[self.number] = len(ids)
        return self.group.look_up(ids, counts)

    # ---- to the host and back --------------------------------------------------------------------

    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        self.group.check()
        return self.group.export(self.number, chunk_rows)

    def _read(self, ids: Tensor) -> Rows:
        """Rows of a fixed table, in host memory."""
        places = ids.to(self.device) + self.group.first_rows[self.number]
        return self.group._rows(ids, places)

    def restore(self, rows: Rows) -> None:
        self.check_rows(rows)
        self.group.restore(self.number, rows)

    def _assign(self, ids: Tensor, values: Tensor) -> None:
        self.group.assign(self.number, ids, values)

    def shrink(self, rule: Shrink) -> int:
        self.check_shrink(rule)
        assert isinstance(self.group, GrowingGpuTables)
        return self.group.shrink(self.number, rule.min_norm)


def _by_group(engines: Sequence[GpuEngine]) -> dict[GpuTables, list[int]]:
    """The places of the engines of each group, in the order of its tables."""
    groups: dict[GpuTables, list[int]] = {}
    for k, engine in enumerate(engines):
        groups.setdefault(engine.group, []).append(k)
    for members in groups.values():
        members.sort(key=lambda k: engines[k].number)
    return groups


def _flat_bags(
    engines: Sequence[GpuEngine], ids: Sequence[Tensor], bags: Sequence[Bags | None]
) -> list[tuple[int, Bags | None]]:
    """How many ids each engine has, and their bags on its device."""
    ids_and_bags = zip(engines, ids, bags)
    return [
        (len(i), None if engine_bags is None else engine.flat_bags(engine_bags, len(i)))
        for engine, i, engine_bags in ids_and_bags
    ]


def _cat(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
