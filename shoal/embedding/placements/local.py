"""LocalRows: every row in this process. `single` uses it; all other services must equal it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.engines.recordable import Recordable
from shoal.embedding.engines.row_engine import RowEngine, by_kind, flat_grads, pull_all, push_all
from shoal.embedding.output_table import InPlaceRows
from shoal.embedding.rows.admission import apply_row_rules
from shoal.embedding.rows.bags import Bags, join_bags
from shoal.embedding.rows.store import Every, Ids, Store
from shoal.embedding.service import (
    Collected,
    Gradients,
    Lookup,
    RowGradients,
    RowService,
    join_flat,
)


@dataclass(frozen=True, eq=False)
class Pulled:
    """Rows of one lookup; backward leaves their gradient on them."""

    ids: Ids  # flat
    rows: Tensor
    clicks: Tensor | None = None  # labels of the ids' samples, where they are known
    bags: Bags | None = None  # rows are sums over these

    def gradients(self, counted: bool) -> RowGradients:
        """The gradients of the rows; where ids are counted, with shows and clicks of each id."""
        grads, counts = flat_grads(self.rows), None
        if counted:
            shown = torch.ones(len(grads) if isinstance(self.ids, Every) else len(self.ids))
            clicks = torch.zeros_like(shown) if self.clicks is None else self.clicks
            counts = torch.stack([shown, clicks], 1)
        return RowGradients(self.ids, grads, counts, bags=self.bags)


class LocalRows(RowService):
    """Engines of this process, read and updated directly."""

    def __init__(
        self,
        engines: Mapping[str, RowEngine],
        rules: Mapping[str, RowRules] | None = None,
        device: torch.device | str = "cpu",
    ):
        super().__init__(engines, rules, device)
        self.engines = dict(engines)
        self._clicks: dict[int | None, Tensor | None] = {}  # of the batch's fields
        self._pulled: dict[str, list[Pulled]] = {name: [] for name in self.engines}
        self._pulls = 0  # since the last `collect`
        self._once = False  # whether the step before had one pull alone
        self._expects_push = False  # whether the last pull prepared a push of its ids

    @property
    def stores(self) -> dict[str, Store]:
        return dict(self.engines)

    def prefetch(self, batch: object, lookups: Sequence[Lookup]) -> None:
        ids: dict[str, list[Tensor]] = {}
        for lookup in lookups:
            if not isinstance(lookup.flat, Every):
                ids.setdefault(lookup.table, []).append(lookup.flat)
        for name, parts in ids.items():
            self.engines[name].prefetch(parts)

    def begin(self, batch: object, lookups: Sequence[Lookup]) -> None:
        self.batch = batch
        self._clicks = {one.field: one.clicks for one in lookups} if self.counted else {}

    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        engines = [self.engines[one.table] for one in lookups]
        result = []
        if learn:
            self._expects_push = self._once and self._pulls == 0
            self._pulls += 1
        ids, bags = [one.flat for one in lookups], [one.bags for one in lookups]
        rows_by_lookup = pull_all(engines, ids, learn and self._expects_push, bags)
        for lookup, rows in zip(lookups, rows_by_lookup):
            if rows.device != self.device:
                rows = rows.to(self.device)
            shaped = lookup.bags is None and lookup.flat is not lookup.ids
            if shaped and not isinstance(lookup.ids, Every):
                rows = rows.view(*lookup.ids.shape, rows.shape[1])
            if learn:
                rows.requires_grad_()
                clicks = None if lookup.field is None else self._clicks.get(lookup.field)
                pulled = Pulled(lookup.flat, rows, clicks, lookup.bags)
                self._pulled[lookup.table].append(pulled)
            result.append(rows)
        return result

    # ---- steps that are recorded as CUDA graphs --------------------------------------------------

    @property
    def offloaded_tables(self) -> set[str]:
        """Tables whose rows may lie elsewhere, and are staged where they are used."""
        return {name for name, engine in self.engines.items() if engine.offloaded}

    def find_unrecordable(self) -> str | None:
        """A table whose updates cannot be part of a CUDA graph; None: there is none."""
        for name, engine in self.engines.items():
            if not (isinstance(engine, Recordable) and engine.recordable):
                return name
        return None

    def begin_replay(self, lr: float, ids: Mapping[str, Sequence[Tensor]]) -> None:
        """Count a step of all tables, and stage the rows of offloaded ones: a recorded step is
        replayed next. ids: of the step, by offloaded table.
        """
        engines = list(self.engines.values())
        for kind, numbers in by_kind(engines).items():
            kind.begin_many([engines[number] for number in numbers], lr)
        for name, table_ids in ids.items():
            engine = self.engines[name]
            assert isinstance(engine, Recordable)
            engine.stage(table_ids)

    # ---- the rows --------------------------------------------------------------------------------

    def memory_of(self, name: str) -> int:
        return self.engines[name].memory

    def _rows_in_place(self, name: str) -> InPlaceRows | None:
        return InPlaceRows(self.engines[name])

    def collect(self, dense: Sequence[Tensor] = ()) -> Collected:
        outputs = self._take_outputs(self._touched())
        gradients = {}
        self._once, self._pulls = self._pulls == 1, 0
        expected = self._once and self._expects_push
        for name, engine in self.engines.items():
            from_outputs, count = outputs.get(name, []), len(self._pulled[name])
            pulled = self._take_pulled(name)
            joined = join(from_outputs + pulled, engine.table.dim, name in self.counted)
            if expected and not from_outputs and len(pulled) == count:
                joined = replace(joined, pulled=True)
            gradients[name] = replace(joined, padding=engine.table.padding)
        return Collected(join_flat(dense, self.device), gradients)

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        push_all(
            [self._updated(name) for name in gradients],
            [(one.ids, one.scaled(scale).grads) for one in gradients.values()],
            lr,
            [one.counts for one in gradients.values()],
            [one.pulled for one in gradients.values()],
            [one.bags for one in gradients.values()],
        )
        for name, rules in self.rules.items():
            apply_row_rules(self.engines[name], rules)
        self._step_outputs(lr, scale)

    def _updated(self, name: str) -> RowEngine:
        """The engine that updates the rows whose gradients `collect` has of a table."""
        return self.engines[name]

    def _touched(self) -> list[str]:
        """Tables that lookups have gradients of."""
        return [n for n, some in self._pulled.items() if any(p.rows.grad is not None for p in some)]

    def _take_pulled(self, name: str) -> list[RowGradients]:
        """Gradients of this process's lookups since the last call, one item a lookup."""
        pulled, self._pulled[name] = self._pulled[name], []
        counted = name in self.counted
        return [one.gradients(counted) for one in pulled if one.rows.grad is not None]


def join(parts: list[RowGradients], dim: int, counted: bool) -> RowGradients:
    """Gradients of one table's rows from several lookups, one after the other."""
    whole = [part for part in parts if isinstance(part.ids, Every)]
    if whole:  # the others are added to it, in place
        total = whole[0].grads
        for part in parts:
            if isinstance(part.ids, Every):
                total = total if part is whole[0] else total.add_(part.grads)
            else:
                summed = part if part.bags is None else part.summed(len(total))
                assert not isinstance(summed.ids, Every)
                total.index_add_(0, summed.ids.to(total.device), summed.grads)
        return whole[0]
    if not parts:
        counts = torch.empty(0, 2) if counted else None
        return RowGradients(torch.empty(0, dtype=torch.int64), torch.empty(0, dim), counts)
    if len(parts) == 1:
        return parts[0]
    ids = [part.ids for part in parts if not isinstance(part.ids, Every)]
    counts = (
        torch.cat([part.counts for part in parts if part.counts is not None]) if counted else None
    )
    bags = None
    if any(part.bags is not None for part in parts):
        bags = join_bags([(len(part_ids), part.bags) for part_ids, part in zip(ids, parts)])
    grads = _end_to_end([part.grads for part in parts])
    return RowGradients(torch.cat(ids), grads, counts, bags=bags)


def _end_to_end(parts: list[Tensor]) -> Tensor:
    """Parts [n, dim] one after the other."""
    if not parts[0].is_cpu:
        return torch.cat(parts)
    # torch.cat wakes OpenMP's threads, which then spin beside those of the native core.
    return torch.from_numpy(np.concatenate([part.numpy() for part in parts]))
