"""RowEngine: rows in this process, read by `pull`, updated by `push`; checks of what comes in."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from shoal.embedding.engines.budgets import row_bytes
from shoal.embedding.engines.saved_rows import SavedRows
from shoal.embedding.rows.admission import Admission, Shrink
from shoal.embedding.rows.bags import Bags
from shoal.embedding.rows.store import Every, Ids
from shoal.embedding.rows.table import Table
from shoal.kernels.bags import sum_bags
from shoal.kernels.distinct_ids import add_rows, distinct
from shoal.optimizers.row_optimizer import RowOptimizer


@dataclass(frozen=True)
class AdamRows:
    """The memory of a fixed table whose rows learn by Adam."""

    values: Tensor  # [rows, dim]
    first: Tensor  # first and second moments [rows, dim]
    second: Tensor
    numbers: Tensor  # of the present step: step size, eps, learning rate, share kept


class RowEngine(SavedRows):
    """Rows of one table in this process: read, updated, saved. Subclasses hold the memory.

    Engines that count ids are a CountedEngine (counted_engine.py), those whose updates may be
    part of a CUDA graph are Recordable (recordable.py).
    """

    offloaded = False  # whether rows may lie elsewhere, and are staged where they are used
    device = torch.device("cpu")  # where ids and gradients are wanted

    def __init__(
        self,
        table: Table,
        optimizer: RowOptimizer,
        seed: int,
        admission: Admission | None = None,
    ):
        if table.dim < 1 or (table.rows is not None and table.rows < 1):
            raise ValueError(
                f"table {table.name!r} is {table.rows} × {table.dim}; rows and dim must be 1 or "
                "more (rows=None: a table that grows)"
            )
        if admission is not None and table.rows is not None:
            raise ValueError(
                f"table {table.name!r} has {table.rows} rows: admission is for tables that grow "
                "(rows=None)"
            )
        if table.dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"table {table.name!r}: rows of {table.dtype}; known are float32 and bfloat16"
            )
        self.admission = admission
        self.table = table
        self.optimizer = optimizer
        self.seed = seed
        self._step = 0

    @abstractmethod
    def __len__(self) -> int:
        """Rows held: all of a fixed table, those that were updated of a growing one."""

    def __bool__(self) -> bool:
        return True  # a growing table of length 0 is a table all the same

    @property
    def memory(self) -> int:
        """Bytes that the rows held and their state take; with the index, where there is one."""
        return len(self) * row_bytes(self.table, self.optimizer)

    @property
    def step(self) -> int:
        """How many times `push` was called."""
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        if value < 0:
            raise ValueError(f"table {self.table.name!r}: step is {value}; it must be 0 or more")
        self._step = int(value)

    def view_rows(self) -> Tensor | None:
        """A view of all rows [rows, dim], valid until the next push; None: not supported."""
        return None

    def adam_rows(self) -> AdamRows | None:
        """State for kernels that update every row by Adam; None: not supported."""
        return None

    def prefetch(self, ids: Sequence[Tensor]) -> None:
        """Hint that these ids [n_k] are pulled soon; offloaded rows may be staged."""

    @abstractmethod
    def pull(self, ids: Ids) -> Tensor:
        """Rows of `ids` [n], which may repeat: [n, dim] float32, a new tensor."""

    @abstractmethod
    def push(self, ids: Ids, grads: Tensor, lr: float, counts: Tensor | None = None) -> None:
        """One optimizer step by gradients [n, dim]; those of the same row are summed first.

        Called once per training step, possibly with n = 0: the count of calls is the step number
        that Adam's bias correction needs. With counters, counts [n, 2] has how often each of the
        ids was shown, a whole number, and clicked; None: shown once, never clicked.
        """

    # Rows of bags of ids, see rows/bags.py. The plain form: by distinct rows.

    def pull_bags(self, ids: Tensor, bags: Bags) -> Tensor:
        """Sums of the rows of ids [n] over their bags: [bags, dim] float32, a new tensor."""
        flat = self.ids_inside(ids)
        bags = self.flat_bags(bags, len(flat))
        distinct_ids, places = distinct(flat, self.table.rows)
        return sum_bags(self.pull(distinct_ids).to(flat.device), bags.offsets, places, bags.weights)

    def push_bags(
        self, ids: Tensor, grads: Tensor, bags: Bags, lr: float, counts: Tensor | None = None
    ) -> None:
        """`push` of gradients [bags, dim] of bags: each id has its bag's, times its weight."""
        flat = self.ids_inside(ids)
        bags, counts = self.flat_bags(bags, len(flat)), self.flat_counts(counts, len(flat))
        grads = self.flat_grads(grads, len(bags))
        distinct_ids, places = distinct(flat, self.table.rows)
        if counts is None and self.admission is not None:
            counts = torch.tensor([[1.0, 0.0]]).repeat(len(flat), 1)
        if counts is not None:
            counts = add_rows(None, places, counts, len(distinct_ids))
        sums = add_rows(
            None, places, grads, len(distinct_ids), offsets=bags.offsets, weights=bags.weights
        )
        self.push(distinct_ids, sums, lr, counts)

    # Engines of one kind together, which some kinds do in one call. Any: a kind's own class.

    @classmethod
    def pull_many(
        cls,
        engines: Sequence[Any],
        ids: Sequence[Ids],
        learn: bool = False,
        bags: Sequence[Bags | None] = (),
    ) -> list[Tensor]:
        """Rows of several engines: ids[k] [n_k] -> [n_k, dim_k]; an engine may come twice.

        learn: a hint, the next push may be of these ids. bags[k]: rows are summed over them.
        """
        return [
            engine.pull(part) if engine_bags is None else engine.pull_bags(part, engine_bags)
            for engine, part, engine_bags in zip(engines, ids, bags or [None] * len(ids))
        ]

    @classmethod
    def push_many(
        cls,
        engines: Sequence[Any],
        ids: Sequence[Ids],
        grads: Sequence[Tensor],
        lr: float,
        pulled: bool = False,
        bags: Sequence[Bags | None] = (),
    ) -> None:
        """One step of several engines, each given once.

        pulled: ids are those of the last pull that learns, of all engines and in its order.
        bags[k]: gradients are those of its bags.
        """
        for engine, part, grad, engine_bags in zip(engines, ids, grads, bags or [None] * len(ids)):
            if engine_bags is None:
                engine.push(part, grad, lr)
            else:
                engine.push_bags(part, grad, engine_bags, lr)

    @cached_property
    def _every(self) -> Tensor:
        return every_id(self.table).to(self.device)

    def flat_ids(self, ids: Ids) -> Tensor:
        """Ids as the engines take them: [n] int64, contiguous, on their device."""
        if isinstance(ids, Every):
            return self._every
        flat = flat_ids(self.table.name, ids)
        return flat if flat.device == self.device else flat.to(self.device)

    def ids_inside(self, ids: Ids) -> Tensor:
        """Flat ids; ids that a fixed table has no row for are refused."""
        flat = self.flat_ids(ids)
        # A GPU would be waited for at every step; there kernels note it, or CUDA itself stops.
        if flat.is_cpu and not isinstance(ids, Every):
            self.table.check_ids(flat)
        return flat

    def flat_grads(self, grads: Tensor, n: int) -> Tensor:
        """Gradients as the engines take them: [n, dim] float32, contiguous, on their device."""
        want = (n, self.table.dim)
        if grads.dtype != torch.float32 or grads.shape != want:
            raise ValueError(
                f"table {self.table.name!r}: gradients are {grads.dtype} {list(grads.shape)}; for "
                f"{n} of them they must be torch.float32 {list(want)}"
            )
        if grads.device == self.device and grads.is_contiguous():
            return grads
        return grads.detach().to(self.device).contiguous()

    def flat_bags(self, bags: Bags, n: int) -> Bags:
        """Bags of n ids as the engines take them: contiguous, on their device."""
        bags.check(self.table.name, n)
        return bags.to(self.device)

    def assign(self, ids: Tensor, values: Tensor) -> None:
        """Set the values of rows, distinct ids [n], values [n, dim]; their state stays."""
        if self.admission is not None:
            raise ValueError(f"table {self.table.name!r} keeps counters: restore whole rows")
        ids = self.ids_inside(ids)
        self._assign(ids, self.flat_grads(values, ids.numel()))

    def _assign(self, ids: Tensor, values: Tensor) -> None:
        raise NotImplementedError  # every engine in host memory writes its own

    @abstractmethod
    def shrink(self, rule: Shrink) -> int:
        """Drop rows of a growing table; returns how many went."""

    def forget(self) -> None:
        """Drop every row of a growing table, and every count."""
        self.shrink(Shrink(min_norm=math.inf))

    def flat_counts(self, counts: Tensor | None, n: int) -> Tensor | None:
        """Shows and clicks of ids as the engines take them: [n, 2] float32, on their device."""
        if counts is None:
            return None
        self.check_counted("a push of counts")
        if counts.dtype != torch.float32 or counts.shape != (n, 2):
            raise ValueError(
                f"table {self.table.name!r}: counts are {counts.dtype} {list(counts.shape)}; for "
                f"{n} ids they must be torch.float32 [{n}, 2]"
            )
        return counts.detach().to(self.device)

    def check_counted(self, what: str) -> None:
        """Refuse what only a table with counters can do."""
        if self.admission is None:
            raise ValueError(
                f"table {self.table.name!r} keeps no counters, which {what} needs: make it with "
                "rows=None and admission=Admission()"
            )

    def check_shrink(self, rule: Shrink) -> None:
        """Refuse to shrink what cannot."""
        if rule.needs_counters():
            self.check_counted("shrink by score, age or capacity")
        if self.table.rows is not None:
            raise ValueError(f"table {self.table.name!r} is fixed: only a table that grows shrinks")


def flat_ids(table: str, ids: Tensor) -> Tensor:
    """Ids of any shape and strides as engines read them: [n] int64, contiguous."""
    if ids.dtype != torch.int64:
        raise ValueError(
            f"table {table!r}: ids are {ids.dtype}; they must be torch.int64 (ids.long())"
        )
    return ids if ids.dim() == 1 and ids.is_contiguous() else ids.reshape(-1).contiguous()


def flat_grads(rows: Tensor) -> Tensor:
    """The gradient that backward left on rows [..., dim]: [n, dim], contiguous."""
    assert rows.grad is not None
    return rows.grad.reshape(-1, rows.shape[-1]).contiguous()


@cache
def every_id(table: Table) -> Tensor:
    """The id of every row of a fixed table; one tensor for all who ask, not to be written to."""
    if table.rows is None:
        raise ValueError(f"table {table.name!r} grows: it has no last row")
    return torch.arange(table.rows)


# ---- engines of several tables ------------------------------------------------------------------


def by_kind(stores: Sequence[RowEngine]) -> dict[Any, list[int]]:
    """The numbers of the stores of each class."""
    kinds: dict[Any, list[int]] = {}
    for k, store in enumerate(stores):
        kinds.setdefault(type(store), []).append(k)
    return kinds


def pull_all(
    stores: Sequence[RowEngine],
    ids: Sequence[Ids],
    learn: bool = False,
    bags: Sequence[Bags | None] = (),
) -> list[Tensor]:
    """Rows of several stores, with one call per kind: ids[k] [n_k] -> [n_k, dim_k].

    learn: a hint that the next `push_all` may be of these ids. bags[k]: rows are summed over them.
    """
    bags = bags or [None] * len(stores)
    rows: dict[int, Tensor] = {}
    for kind, members in by_kind(stores).items():
        member_arguments = [[arguments[k] for k in members] for arguments in (stores, ids, bags)]
        pulled = kind.pull_many(
            member_arguments[0], member_arguments[1], learn, member_arguments[2]
        )
        rows.update(zip(members, pulled))
    return [rows[k] for k in range(len(stores))]


def push_all(
    stores: Sequence[RowEngine],
    parts: Sequence[tuple[Ids, Tensor]],
    lr: float,
    counts: Sequence[Tensor | None] = (),
    pulled: Sequence[bool] = (),
    bags: Sequence[Bags | None] = (),
) -> None:
    """One step of several stores, with one call per kind; parts[k]: ids, grads of stores[k].

    counts[k] [n, 2], of a store with counters: how often each id was shown, and clicked.
    pulled[k]: the ids are those that the last pull that learns had of it, in that order.
    bags[k]: gradients are those of its bags.
    """
    bags = bags or [None] * len(stores)
    counts, pulled = counts or [None] * len(stores), pulled or [False] * len(stores)
    uncounted = [k for k in range(len(stores)) if counts[k] is None]
    for kind, members in by_kind([stores[k] for k in uncounted]).items():
        chosen = [uncounted[k] for k in members]
        kind.push_many(
            [stores[k] for k in chosen],
            [parts[k][0] for k in chosen],
            [parts[k][1] for k in chosen],
            lr,
            all(pulled[k] for k in chosen),
            [bags[k] for k in chosen],
        )
    for store, (ids, grads), counted, store_bags in zip(stores, parts, counts, bags):
        if counted is not None:
            push_counted(store, ids, grads, lr, counted, store_bags)


def push_counted(
    store: RowEngine,
    ids: Ids,
    grads: Tensor,
    lr: float,
    counts: Tensor | None = None,
    bags: Bags | None = None,
) -> None:
    """A step of a store; counts [n, 2], where it has counters: shows and clicks of each id."""
    if bags is not None:
        assert not isinstance(ids, Every)
        store.push_bags(ids, grads, bags, lr, counts)
        return
    if counts is not None and not bool((counts[:, 0] > 0).all()):
        shown = counts[:, 0] > 0  # rows that got no gradient are not updated
        flat = store.flat_ids(ids)
        ids, counts = flat[shown.to(flat.device)], counts[shown]
        grads = grads[shown.to(grads.device)]
    store.push(ids, grads, lr, counts)
