"""RowService: the one door to rows. Models look rows up here, strategies collect and apply here.

announce   the lookups of a coming batch: what can travel ahead does
begin      a batch is trained now: its rows are on their way, or here
pull       rows of lookups, as autograd leaves where they take part in training
collect    after backward: the gradients of the global batch that this process must apply
apply      one step of the row optimizers
saved      the stores whose rows go into a checkpoint, and come back from one

Implementations: rows in this process (placed/local.py), on every rank (placed/replicated.py),
spread over the ranks (placed/sharded.py), in TorchRec's collections (placed/torchrec.py) and with
parameter servers (shoal.ps.worker.remote).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.placements.placement import Layout
from shoal.embedding.store import EVERY, Every, Ids, Store, flat_ids
from shoal.world.world import World


@dataclass(frozen=True)
class Lookup:
    """Ids of any shape and strides in one table."""

    table: str
    ids: Ids
    field: int | None = None  # the number of the batch's field that they are; None: none of it

    @cached_property
    def flat(self) -> Ids:
        """The same ids as every service reads them: [n], contiguous."""
        return self.ids if isinstance(self.ids, Every) else flat_ids(self.table, self.ids)


Labels = dict[int, Tensor]  # field -> the label of each id's sample [ids]


@dataclass(frozen=True)
class RowGradients:
    """Gradients of one table's rows: of ids [n], repeated ones not summed yet, [n, dim].

    Both are contiguous.
    """

    ids: Ids
    grads: Tensor
    counts: Tensor | None = None  # where ids are counted: shows and clicks of each [n, 2]
    # Whether ids are those of the step's one pull, in its order:
    pulled: bool = field(default=False, kw_only=True)

    def scaled(self, scale: float) -> RowGradients:
        """The same, multiplied in place."""
        if scale != 1.0:
            self.grads.mul_(scale)
        return self


Gradients = dict[str, RowGradients]  # by table


class Late(Protocol):
    """Rows that are updated in `apply` without their gradients ever being written."""

    tables: list[str]

    def gradients(self) -> list[Tensor]:
        """Those gradients after all: of every row held here, a tensor per table."""

    def step(self, lr: float, scale: float) -> None:
        """Update the rows; gradients are to be multiplied by `scale`."""


class RowService(ABC):
    """Reads and updates the tables of one model; where ranks share rows, all of them call it."""

    looks_ahead = True  # whether `announce` and `begin` read the lookups of a batch

    def __init__(
        self,
        stores: Mapping[str, Store],
        rules: Mapping[str, RowRules] | None = None,
        device: torch.device | str = "cpu",
    ):
        self.stores, self.rules = dict(stores), dict(rules or {})
        self.device = torch.device(device)  # where rows are wanted
        self.counted = {name for name, one in self.rules.items() if one.counted}
        self.batch: object | None = None  # in training now
        self._own: dict[str, list[Tensor]] = {name: [] for name in self.stores}  # read by `own`
        self._late: list[Late] = []

    # ---- before the model computes --------------------------------------------------------------

    def announce(self, batch: object, lookups: Sequence[Lookup]) -> None:
        """A hint: this batch is trained after the present one."""

    def begin(
        self, batch: object, lookups: Sequence[Lookup], labels: Labels, lr: float = 0.0
    ) -> None:
        """Train this batch now. `labels` are of its fields, where ids are counted."""
        self.batch = batch

    def advance(self) -> None:
        """The model has computed: let what was announced go on."""

    # ---- while it computes ----------------------------------------------------------------------

    @abstractmethod
    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        """Rows of each lookup: its ids' shape + [dim]; `learn`: `collect` has their gradients."""

    def own(self, name: str, learn: bool) -> Tensor | None:
        """The rows of a fixed table that this process holds [k, dim]: read at once, not kept.

        Their gradient stays here. None where rows cannot be read so.
        """
        leaf = self.leaf(name)
        if leaf is None:
            return None
        lent = leaf.lend()
        rows = leaf.pull(EVERY).to(self.device) if lent is None else lent.detach()
        if learn:
            self._own[name].append(rows.requires_grad_())
        return rows

    def _take_own(self, name: str) -> list[RowGradients]:
        """Gradients of the rows that `own` read since the last call, each time by itself."""
        own, self._own[name] = self._own[name], []
        return [RowGradients(EVERY, flat_grads(rows)) for rows in own if rows.grad is not None]

    def leaf(self, name: str) -> RowEngine | None:
        """What holds the rows that `own` reads; None: nothing here."""
        return None

    def spread(self, name: str) -> tuple[Layout, World] | None:
        """Which ranks share the rows that `own` reads, and how; None: each has all, or none has."""
        return None

    def read_whole(self, names: Sequence[str]) -> None:
        """A softmax alone reads and updates these fixed tables, all of their rows in every step."""

    def add_late(self, late: Late) -> None:
        """Backward came by rows that are updated in `apply`."""
        self._late.append(late)

    def _write_late(self, always: Collection[str] = ()) -> None:
        """Write the gradients of late updates after all, where others must be added to them.

        always: tables of which it is known already.
        """
        tables = [name for late in self._late for name in late.tables]
        kept = []
        for late in self._late:
            alone = all(tables.count(n) == 1 and not self._has_gradients(n) for n in late.tables)
            if alone and not any(name in always for name in late.tables):
                kept.append(late)
                continue
            for name, grads in zip(late.tables, late.gradients()):
                rows = grads.detach().requires_grad_()
                rows.grad = grads
                self._own[name].append(rows)
        self._late = kept

    def _has_gradients(self, name: str) -> bool:
        """Whether rows of a table have gradients that were not collected yet."""
        return any(rows.grad is not None for rows in self._own[name])

    # ---- after backward -------------------------------------------------------------------------

    def note(self) -> float:
        """A number of this rank; `collect` is given its sum over all ranks."""
        return 0.0

    @abstractmethod
    def collect(self, scale: float = 1.0, notes: float = 0.0) -> Gradients:
        """Gradients since the last call, multiplied by `scale`, that this process must apply."""

    @abstractmethod
    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        """One step of every table; `scale` is what the gradients were multiplied by."""

    def squares(self, gradients: Gradients) -> Tensor:
        """The sum of squares of all rows' summed gradients, over all ranks."""
        return sum_squares([one.grads for one in gradients.values()])

    def meet(self) -> None:
        """All ranks, before and after rows are restored: nobody reads what others may write."""

    def settle(self) -> None:
        """Forget the batch in training: the model is evaluated or saved next."""
        self.batch = None

    # ---- checkpoints ----------------------------------------------------------------------------

    @property
    def steps(self) -> dict[str, int]:
        """How many steps the rows of each table have had."""
        return {name: store.step for name, store in self.stores.items()}

    @steps.setter
    def steps(self, steps: dict[str, int]) -> None:
        for name, step in steps.items():
            self.stores[name].step = step

    def mark(self) -> dict[str, int]:
        """A point in time of each store that this rank exports, for what changes after it."""
        return {name: store.mark() for name, store in self.saved()}

    def saved(self) -> Iterator[tuple[str, Store]]:
        """The stores that this rank exports, one after the other on all ranks that share them."""
        yield from self.stores.items()


def flat_grads(rows: Tensor) -> Tensor:
    """The gradient that backward left on rows [..., dim]: [n, dim], contiguous."""
    assert rows.grad is not None
    return rows.grad.reshape(-1, rows.shape[-1]).contiguous()


def sum_squares(tensors: list[Tensor]) -> Tensor:
    """The sum of squares of everything in them."""
    norms = [torch.linalg.vector_norm(tensor).square().cpu() for tensor in tensors]
    return torch.stack(norms).sum() if norms else torch.zeros(())
