"""Native: the engine in C++ (csrc/). Same answers as the reference, at the speed of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from shoal.embedding.engines.counted_engine import CountedEngine
from shoal.embedding.engines.init import recipe
from shoal.embedding.engines.saved_rows import COUNTERS
from shoal.embedding.rows.admission import ALONE, Admission, Filter, Pending, Shrink
from shoal.embedding.rows.bags import Bags
from shoal.embedding.rows.store import Ids, Rows
from shoal.embedding.rows.table import Table
from shoal.kernels import tables
from shoal.kernels.core import has_core
from shoal.kernels.tables import BLOOM_LAYOUT, CoreTable
from shoal.optimizers.row_optimizer import RowOptimizer


class Native(CountedEngine):
    """Rows of one table in the native core. Safe for one writer and many readers at once."""

    def __init__(
        self,
        table: Table,
        optimizer: RowOptimizer,
        seed: int,
        admission: Admission | None = None,
        *,
        threads: int | None = None,
    ):
        super().__init__(table, optimizer, seed, admission)
        if threads is not None and threads < 1:
            raise ValueError(f"table {table.name!r}: threads is {threads}; it must be 1 or more")
        self.threads = threads
        self._pieces = list(optimizer.state_names())
        self._counters = [] if admission is None else list(COUNTERS)
        self._newest_mark = 0
        rule = admission or Admission()
        self.core = CoreTable(
            table.dim,
            table.rows,
            table.padding,
            table.half,
            () if table.numbering is None else astuple(table.numbering),
            recipe(table, seed),
            optimizer,
            None
            if admission is None
            else (rule.threshold, rule.show_coefficient, rule.click_coefficient),
            rule.bloom_counters if rule.threshold > 0 else 0,
            _num_threads([self]),
        )

    def __len__(self) -> int:
        return len(self.core)

    @property
    def memory(self) -> int:
        """Bytes that rows, their state and the index take."""
        return self.core.bytes

    def pull(self, ids: Ids) -> Tensor:
        return self.pull_many([self], [ids])[0]

    def push(self, ids: Ids, grads: Tensor, lr: float, counts: Tensor | None = None) -> None:
        self.push_many([self], [ids], [grads], lr, counts=self.flat_counts(counts, len(grads)))

    def pull_bags(self, ids: Tensor, bags: Bags) -> Tensor:
        return self.pull_many([self], [ids], bags=[bags])[0]

    def push_bags(
        self, ids: Tensor, grads: Tensor, bags: Bags, lr: float, counts: Tensor | None = None
    ) -> None:
        counts = self.flat_counts(counts, ids.numel())
        self.push_many([self], [ids], [grads], lr, bags=[bags], counts=counts)

    @classmethod
    def pull_many(
        cls,
        engines: Sequence[Native],
        ids: Sequence[Ids],
        learn: bool = False,
        bags: Sequence[Bags | None] = (),
    ) -> list[Tensor]:
        flat = [engine.flat_ids(part) for engine, part in zip(engines, ids, strict=True)]
        flat_bags = _flat_bags(engines, flat, bags)
        sizes = [
            len(engine_ids) if engine_bags is None else len(engine_bags)
            for engine_ids, engine_bags in zip(flat, flat_bags, strict=True)
        ]
        out = [torch.empty(size, engine.table.dim) for engine, size in zip(engines, sizes)]
        plain = [k for k, one in enumerate(flat_bags) if one is None]
        pooled = [(k, one) for k, one in enumerate(flat_bags) if one is not None]
        if plain:
            chosen, chosen_ids = [engines[k] for k in plain], [flat[k] for k in plain]
            cores, rows = [engine.core for engine in chosen], [out[k] for k in plain]
            _refuse(chosen, chosen_ids, tables.pull(cores, chosen_ids, rows, _num_threads(engines)))
        if pooled:
            chosen, chosen_ids = [engines[k] for k, _ in pooled], [flat[k] for k, _ in pooled]
            cores, rows = [engine.core for engine in chosen], [out[k] for k, _ in pooled]
            offsets = [one.offsets for _, one in pooled]
            weights = [one.weights for _, one in pooled]
            threads = _num_threads(engines)
            wrong = tables.pull_bags(cores, chosen_ids, offsets, weights, rows, threads)
            _refuse(chosen, chosen_ids, wrong)
        return out

    @classmethod
    def push_many(
        cls,
        engines: Sequence[Native],
        ids: Sequence[Ids],
        grads: Sequence[Tensor],
        lr: float,
        pulled: bool = False,
        bags: Sequence[Bags | None] = (),
        counts: Tensor | None = None,
    ) -> None:
        """One step of several engines; counts: shows and clicks of ids, for one engine only."""
        flat = [engine.flat_ids(part) for engine, part in zip(engines, ids, strict=True)]
        flat_bags = _flat_bags(engines, flat, bags)
        sizes = [
            len(engine_ids) if engine_bags is None else len(engine_bags)
            for engine_ids, engine_bags in zip(flat, flat_bags, strict=True)
        ]
        grads = [s.flat_grads(g, size) for s, size, g in zip(engines, sizes, grads, strict=True)]
        offsets = [None if one is None else one.offsets for one in flat_bags]
        weights = [None if one is None else one.weights for one in flat_bags]
        cores, steps = [engine.core for engine in engines], _next_steps(engines, lr)
        shows, clicks = (None, None) if counts is None else map(Tensor.contiguous, counts.unbind(1))
        wrong = tables.push(
            cores,
            flat,
            grads,
            steps,
            _num_threads(engines),
            shows,
            clicks,
            offsets,
            weights,
        )
        _refuse(engines, flat, wrong)
        for engine in engines:
            engine._step += 1

    def mark(self) -> int:
        self._newest_mark = self.core.mark()
        return self._newest_mark

    def decay(self, factor: float) -> None:
        self.check_counted("decay")
        self.core.decay(factor)

    def shrink(self, rule: Shrink) -> int:
        self.check_shrink(rule)
        return self.core.shrink(
            rule.min_score,
            rule.min_norm,
            rule.max_age,
            rule.capacity,
            rule.order == "lru",
            self._step,
        )

    def export_pending(self, chunk_rows: int = 1 << 20) -> Iterator[Pending]:
        for ids in self.core.pending_ids().split(chunk_rows):
            parts = [torch.empty(len(ids), dtype=dtype) for dtype in COUNTERS.values()]
            if len(ids):
                ids = ids.clone()
                self.core.read_pending(ids, parts)
                yield Pending(ids, *parts)

    def restore_pending(self, pending: Pending) -> None:
        """Take over counters of ids without a row; a Bloom filter counts on from them."""
        self.check_pending(pending)
        parts = [getattr(pending, key).contiguous() for key in COUNTERS]
        self.core.write_pending(pending.ids.contiguous(), parts)

    @property
    def filter_facts(self) -> tuple[int, int]:
        return filter_facts_of(self.admission)

    def export_filter(self, chunk_bytes: int = 1 << 28) -> Iterator[Filter]:
        size, layout = self.filter_facts
        share = ALONE if self.admission is None else self.admission.share
        for start in range(0, size, chunk_bytes):
            counters = torch.empty(min(chunk_bytes, size - start), dtype=torch.uint8)
            self.core.read_bloom(start, counters)
            yield Filter(counters, start, size, layout, share)

    def restore_filter(self, part: Filter) -> None:
        super().restore_filter(part)
        self.core.write_bloom(part.start, part.counters.contiguous())

    def export(self, chunk_rows: int = 1 << 20, since: int | None = None) -> Iterator[Rows]:
        if since is not None:
            self.check_mark(since, self.core.oldest_mark, self._newest_mark)
            ids = self.core.changed_ids(since)
        elif self.table.rows is not None:
            ids = torch.arange(self.table.rows)
        else:
            ids = self.core.sorted_ids()
        for start in range(0, len(ids), chunk_rows):
            yield self._read(ids[start : start + chunk_rows].clone())

    def restore(self, rows: Rows) -> None:
        self.check_rows(rows)
        ids, values = rows.ids.contiguous(), rows.values.contiguous()
        state = [rows.state[key].contiguous() for key in self._pieces]
        counters = [rows.state[key].contiguous() for key in self._counters]
        self.core.write(ids, values, state, counters)

    def _assign(self, ids: Tensor, values: Tensor) -> None:
        self.core.write(ids, values, [None] * len(self._pieces), [])

    def _read(self, ids: Tensor) -> Rows:
        values = torch.empty(len(ids), self.table.dim)
        shapes = self.state_shapes(len(ids))
        state = {key: torch.empty(shape, dtype=dtype) for key, (shape, dtype) in shapes.items()}
        pieces, counters = ([state[key] for key in keys] for keys in (self._pieces, self._counters))
        self.core.read(ids, values, pieces, counters)
        return Rows(ids, values, state)


def filter_facts_of(admission: Admission | None) -> tuple[int, int]:
    """Bytes and layout of the Bloom filter of a table that counts so; (0, 0): it has none."""
    if not has_core() or admission is None or admission.threshold <= 0:
        return 0, 0
    size = -(-admission.bloom_counters // 32) * 32  # parts of equal size, kShards in csrc/table.h
    return size, BLOOM_LAYOUT if size else 0


def row_reader(stores: Sequence[object], limits: Sequence[int | None]) -> Any:
    """A native reader that answers requests for rows of stores; None where it is not available.

    limits[k]: the rows that may be requested of stores[k], None: any id. See shoal.ps.wire for the
    format of a request; `answer(request, kind)` returns the answer, or None when Python must read
    the request.
    """
    native = [store for store in stores if isinstance(store, Native)]
    if not has_core() or len(native) < len(stores):
        return None
    return tables.row_reader([store.core for store in native], limits, _num_threads(native))


def _next_steps(engines: Sequence[Native], lr: float) -> list[tuple[Any, int]]:
    """The numbers of each engine's next step, and which one that is."""
    return [(one.optimizer.numbers(lr, one._step + 1), one._step + 1) for one in engines]


def _flat_bags(
    engines: Sequence[Native], ids: Sequence[Tensor], bags: Sequence[Bags | None]
) -> Sequence[Bags | None]:
    """Bags of each engine's ids as the core takes them."""
    ids_and_bags = zip(engines, ids, bags or [None] * len(engines))
    return [
        None if engine_bags is None else engine.flat_bags(engine_bags, len(i))
        for engine, i, engine_bags in ids_and_bags
    ]


def _num_threads(engines: Sequence[Native]) -> int:
    """How many threads share the work."""
    return max((engine.threads or torch.get_num_threads() for engine in engines), default=1)


def _refuse(stores: Sequence[Native], ids: Sequence[Tensor], wrong: int) -> None:
    """Raise for the id that the core found outside a table (table << 40 | position)."""
    if wrong >= 0:
        engine_index = wrong >> 40
        raise stores[engine_index].table.outside(int(ids[engine_index][wrong & ((1 << 40) - 1)]))
