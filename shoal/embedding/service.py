"""RowService: the one door to rows, in eight verbs. Models look rows up, strategies train them.

prefetch      a batch comes after this one: rows that are elsewhere may be fetched meanwhile
begin         a batch is trained now
pull          rows of lookups, as autograd leaves where they take part in training
output_table  a table that a softmax reads whole, with its loss (output_table.py)
collect       after backward: the gradients of the global batch that this process applies
apply         one step of the row optimizers
synchronize   what is under way arrives: the model is evaluated or saved next
saved         the stores whose rows this process writes into a checkpoint

LocalRows, below, has every row in this process; all other services must equal it. They have rows
on every rank (placements/replicated.py), split over the ranks (placements/sharded.py), and with
parameter servers (shoal.ps.worker.remote).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.engines.recordable import Recordable
from shoal.embedding.engines.row_engine import (
    RowEngine,
    by_kind,
    flat_grads,
    flat_ids,
    pull_all,
    push_all,
)
from shoal.embedding.output_table import InPlaceRows, OutputTable
from shoal.embedding.rows.admission import apply_row_rules
from shoal.embedding.rows.bags import Bags, join_bags
from shoal.embedding.rows.store import EVERY, Every, Ids, Store
from shoal.embedding.rows.table import Table
from shoal.kernels.distinct_ids import add_rows, distinct


@dataclass(frozen=True)
class Lookup:
    """Ids of any shape and strides in one table."""

    table: str
    ids: Ids
    field: int | None = None  # the number of the batch's field with these ids; None: no field
    clicks: Tensor | None = None  # labels of the ids' samples [n], where ids are counted
    bags: Bags | None = None  # of ids [n]: sums of their rows are looked up

    @cached_property
    def flat(self) -> Ids:
        """The ids as every service reads them: [n], contiguous."""
        return self.ids if isinstance(self.ids, Every) else flat_ids(self.table, self.ids)

    def ids_in(self, table: Table, device: torch.device) -> Tensor:
        """The ids as a tensor, also those of EVERY row."""
        if isinstance(self.flat, Every):
            return torch.arange(table.rows or 0, device=device)
        return self.flat


@dataclass(frozen=True)
class RowGradients:
    """Gradients of one table's rows: of ids [n], repeated ones not summed yet, [n, dim].

    Both are contiguous. With bags, gradients are those of the bags of ids: [bags, dim].
    """

    ids: Ids
    grads: Tensor
    counts: Tensor | None = None  # where ids are counted: shows and clicks of each [n, 2]
    # Whether ids are those of the step's one pull, in its order:
    pulled: bool = field(default=False, kw_only=True)
    # Whether other ranks apply other rows of the same table:
    partial: bool = field(default=False, kw_only=True)
    bags: Bags | None = field(default=None, kw_only=True)
    padding: int | None = field(default=None, kw_only=True)  # an id whose gradient counts nothing

    def scaled(self, scale: float) -> RowGradients:
        """These gradients, multiplied in place."""
        if scale != 1.0:
            self.grads.mul_(scale)
        return self

    def select(self, kept: Tensor) -> RowGradients:
        """The gradients where kept [n] is True, with the ids of each."""
        assert not isinstance(self.ids, Every) and self.counts is None
        if self.bags is None:
            return replace(self, ids=self.ids[kept], grads=self.grads[kept])
        ids = kept.repeat_interleave(self.bags.offsets.diff(), output_size=len(self.ids))
        bags = self.bags.keep_ids(ids)
        kept_bags = Bags(bags.offsets[F.pad(kept, (1, 0), value=True)], bags.weights)
        return replace(self, ids=self.ids[ids], grads=self.grads[kept], bags=kept_bags)

    def summed(self, rows: int | None = None) -> RowGradients:
        """Gradients of distinct ids, ascending, summed; rows: all ids are below it."""
        assert not isinstance(self.ids, Every)
        ids, places = distinct(self.ids, rows)
        bags = (None, None) if self.bags is None else (self.bags.offsets, self.bags.weights)
        grads = add_rows(None, places, self.grads, len(ids), True, *bags)
        if self.padding is not None:
            grads.masked_fill_((ids == self.padding)[:, None], 0.0)
        counts = self.counts
        if counts is not None:
            counts = add_rows(None, places.cpu(), counts, len(ids))
        return RowGradients(ids, grads, counts, partial=self.partial)


Gradients = dict[str, RowGradients]  # by table


class Stepped(Protocol):
    """A table that counts the steps of its rows."""

    step: int


@dataclass(frozen=True)
class Collected:
    """Gradients of a summed loss, from the backward of all ranks."""

    dense: Tensor  # the sum over ranks of the dense pieces, one after the other [n]
    rows: Gradients  # the rows' gradients that this process applies


class RowService(ABC):
    """Reads and updates the tables of one model; where ranks share rows, all of them call it."""

    def __init__(
        self,
        tables: Mapping[str, Stepped],
        rules: Mapping[str, RowRules] | None = None,
        device: torch.device | str = "cpu",
    ):
        self.tables, self.rules = dict(tables), dict(rules or {})
        self.device = torch.device(device)  # where models read rows
        self.counted = {name for name, one in self.rules.items() if one.counted}
        self.batch: object | None = None  # in training now
        self._outputs: list[OutputTable] = []

    # ---- before the model computes --------------------------------------------------------------

    def prefetch(self, batch: object, lookups: Sequence[Lookup]) -> None:
        """Hint that this batch is trained after the present one."""

    def begin(self, batch: object, lookups: Sequence[Lookup]) -> None:
        """Train this batch now; lookups: of its fields."""
        self.batch = batch

    # ---- while it computes ----------------------------------------------------------------------

    @abstractmethod
    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        """Rows of each lookup: its ids' shape + [dim]; of bags their sums: [bags, dim].

        learn: `collect` has their gradients.
        """

    def output_table(self, table: Table, bias: Table | None, alone: bool) -> OutputTable:
        """A fixed table as the output layer of a model; bias: a table of dim 1, added to logits.

        alone: nothing else reads these tables in training.
        """
        in_place = [None if one is None else self._rows_in_place(one.name) for one in (table, bias)]
        output = OutputTable(
            table, bias, in_place[0], in_place[1], self._pull_rows, self.device, alone
        )
        self._outputs.append(output)
        return output

    def _pull_rows(self, name: str, ids: Ids, learn: bool) -> Tensor:
        return self.pull([Lookup(name, ids)], learn)[0]

    def _rows_in_place(self, name: str) -> InPlaceRows | None:
        """The rows of a fixed table that can be read in place; None: they must be pulled."""
        return None

    def _take_outputs(
        self, touched: Collection[str], outputs: Sequence[OutputTable] | None = None
    ) -> dict[str, list[RowGradients]]:
        """Gradients of the rows that output tables read, by table.

        Updates that a softmax makes itself are left to `apply`, except for tables that have other
        gradients in this step (`touched`).
        """
        read_outputs = self._outputs if outputs is None else outputs
        names = [name for output in read_outputs for name in output.deferred_tables]
        written = {*touched, *(name for name in names if names.count(name) > 1)}
        gradients: dict[str, list[RowGradients]] = {}
        for output in read_outputs:
            for name, grads in output.take_gradients(written):
                gradients.setdefault(name, []).append(RowGradients(EVERY, grads))
        return gradients

    def _step_outputs(self, lr: float, scale: float) -> None:
        """Make the deferred updates, after the other updates, which count the steps."""
        for output in self._outputs:
            output.step(lr, scale)

    # ---- after backward -------------------------------------------------------------------------

    @abstractmethod
    def collect(self, dense: Sequence[Tensor] = ()) -> Collected:
        """Gradients since the last call; dense: flat pieces to be summed over ranks with them."""

    @abstractmethod
    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        """One step of every table by gradients times `scale`."""

    def synchronize(self) -> None:
        """Forget the batch in training: the model is evaluated or saved next."""
        self.batch = None

    # ---- measurements and checkpoints -----------------------------------------------------------

    def memory_of(self, name: str) -> int | None:
        """Bytes of a table's rows in this process; None: they are elsewhere."""
        return None

    @property
    def steps(self) -> dict[str, int]:
        """How many steps the rows of each table have had."""
        return {name: table.step for name, table in self.tables.items()}

    @steps.setter
    def steps(self, steps: dict[str, int]) -> None:
        for name, step in steps.items():
            self.tables[name].step = step

    @property
    def stores(self) -> dict[str, Store]:
        """Every table's rows, as checkpoints restore them."""
        return {}

    def saved(self) -> Iterator[tuple[str, Store]]:
        """The stores that this rank exports, one after the other on all ranks that share them."""
        yield from self.stores.items()


def join_flat(pieces: Sequence[Tensor], device: torch.device) -> Tensor:
    """Flat tensors as one."""
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat(list(pieces)) if pieces else torch.empty(0, device=device)


def sum_squares(tensors: list[Tensor]) -> Tensor:
    """The sum of squares of all values of the tensors."""
    norms = [torch.linalg.vector_norm(tensor).square().cpu() for tensor in tensors]
    return torch.stack(norms).sum() if norms else torch.zeros(())


# ---- rows in this process -----------------------------------------------------------------------


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


def _lie_in_order(parts: list[Tensor]) -> bool:
    """Whether parts [n, dim] are pieces of one tensor, each behind the one before it."""
    first, behind = parts[0], parts[0].storage_offset()
    for part in parts:
        whole = part.is_contiguous() and part.dtype == first.dtype
        one_memory = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (whole and one_memory and part.storage_offset() == behind):
            return False
        behind += part.numel()
    return True


def _end_to_end(parts: list[Tensor]) -> Tensor:
    """Parts [n, dim] one after the other."""
    if not parts[0].is_cpu:
        return torch.cat(parts)
    if _lie_in_order(parts):
        rows, dim = sum(len(part) for part in parts), parts[0].shape[1]
        return parts[0].as_strided((rows, dim), (dim, 1))
    # torch.cat wakes OpenMP's threads, which then spin beside those of the native core.
    return torch.from_numpy(np.concatenate([part.numpy() for part in parts]))
