"""Leaf: what the reference and the native leaf share, the checks of what comes in."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from shoal.embedding.leaves.admission import Admission, Filter, Pending, Shrink
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.store import Every, Ids, Rows
from shoal.embedding.table import Table

COUNTERS = {"show": torch.float32, "click": torch.float32, "last_step": torch.int64}


class Leaf(ABC):
    """A Store that holds its rows in this process. Subclasses hold the memory."""

    recordable = False  # whether a push may be part of a CUDA graph; see `begin_many`
    far = False  # whether rows may lie elsewhere, and are brought where they are used

    def __init__(
        self,
        table: Table,
        optimizer: RowOptimizer,
        seed: int,
        admission: Admission | None = None,
        dtype: torch.dtype = torch.float32,
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
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(
                f"table {table.name!r}: rows of {dtype}; known are torch.float32 and torch.bfloat16"
            )
        self.admission = admission
        self.dtype = dtype
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
    def step(self) -> int:
        """How many times `push` was called."""
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        if value < 0:
            raise ValueError(f"table {self.table.name!r}: step is {value}; it must be 0 or more")
        self._step = int(value)

    def lend(self) -> Tensor | None:
        """The rows themselves [rows, dim], to be read until the next push; None: they cannot be."""
        return None

    def announce(self, ids: Sequence[Tensor]) -> None:
        """A hint: these ids [n_k] are pulled soon. A leaf whose rows are far gets them ready."""

    def bring(self, ids: Sequence[Tensor]) -> None:
        """Before a recorded step is replayed: the rows of all its ids [n_k] are where it reads."""

    def forget(self) -> None:
        """Drop every row of a growing table, and every count."""
        counted = self.admission is not None
        self.shrink(Shrink(min_score=math.inf) if counted else Shrink(min_norm=math.inf))
        if counted:
            self.decay(0.0)  # what a Bloom filter counted

    @abstractmethod
    def pull(self, ids: Ids) -> Tensor:
        """Rows of `ids` [n], which may repeat: [n, dim] float32, a tensor of its own."""

    @abstractmethod
    def push(
        self,
        ids: Ids,
        grads: Tensor,
        lr: float,
        clicks: Tensor | None = None,
        shows: Tensor | None = None,
    ) -> None:
        """One optimizer step by gradients [n, dim]; those of the same row are summed first.

        Called once per training step, possibly with n = 0: the count of calls is the step number
        that Adam's bias correction needs. With counters, each of the ids was clicked `clicks` [n]
        times (none) and shown `shows` [n] times (once).
        """

    # Leaves of one kind together, which some kinds do in one call. Any: a kind's own class.

    @classmethod
    def pull_many(cls, leaves: Sequence[Any], ids: Sequence[Ids]) -> list[Tensor]:
        """Rows of several leaves: ids[k] [n_k] -> [n_k, dim_k]; a leaf may come twice."""
        return [leaf.pull(part) for leaf, part in zip(leaves, ids)]

    @classmethod
    def push_many(
        cls, leaves: Sequence[Any], ids: Sequence[Ids], grads: Sequence[Tensor], lr: float
    ) -> None:
        """One step of several leaves, each given once."""
        for leaf, part, grad in zip(leaves, ids, grads):
            leaf.push(part, grad, lr)

    @classmethod
    def begin_many(cls, leaves: Sequence[Any], lr: float) -> None:
        """Count a step of leaves that are `recordable`: their recorded push is replayed next."""
        for leaf in leaves:
            leaf.begin(lr)

    @abstractmethod
    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row held, in chunks of ascending id."""

    @abstractmethod
    def restore(self, rows: Rows) -> None:
        """Take over rows, values and state; a chunk that does not fit changes nothing."""

    def outside(self, id_: int) -> ValueError:
        """The error for an id that a fixed table has no row for."""
        return self.table.outside(id_)

    def flat_ids(self, ids: Ids) -> Tensor:
        """Ids as the engines take them: [n] int64, contiguous, on the CPU."""
        if isinstance(ids, Every):
            return every_id(self.table)
        if ids.dtype != torch.int64:
            raise ValueError(
                f"table {self.table.name!r}: ids are {ids.dtype}; they must be torch.int64 "
                "(ids.long())"
            )
        if ids.dim() == 1 and ids.is_cpu and ids.is_contiguous():
            return ids  # the usual case, without four calls into torch
        return ids.detach().cpu().reshape(-1).contiguous()

    def flat_grads(self, grads: Tensor, n: int) -> Tensor:
        """Gradients as the engines take them: [n, dim] float32, contiguous."""
        want = (n, self.table.dim)
        if grads.dtype != torch.float32 or grads.shape != want:
            raise ValueError(
                f"table {self.table.name!r}: gradients are {grads.dtype} {list(grads.shape)}; for "
                f"{n} of them they must be torch.float32 {list(want)}"
            )
        if grads.is_cpu and grads.is_contiguous():
            return grads
        return grads.detach().cpu().contiguous()

    def check_rows(self, rows: Rows) -> None:
        """Refuse a chunk that does not fit, before anything is changed."""
        table, name = self.table, self.table.name
        ids = rows.ids
        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise ValueError(
                f"table {name!r}: a chunk's ids are {ids.dtype} {list(ids.shape)}; they must be "
                "torch.int64 [n]"
            )
        n = len(ids)
        wanted = self.state_shapes(n)
        if rows.state.keys() != wanted.keys():
            raise ValueError(self._other_state(sorted(rows.state), sorted(wanted)))
        parts: dict[str, tuple[Tensor, tuple[int, ...], torch.dtype]] = {
            "values": (rows.values, (n, table.dim), torch.float32)
        }
        for key, (shape, dtype) in wanted.items():
            parts[key] = (rows.state[key], shape, dtype)
        for key, (part, shape, dtype) in parts.items():
            if part.dtype != dtype or tuple(part.shape) != shape:
                raise ValueError(
                    f"table {name!r}: a chunk's {key} is {part.dtype} {list(part.shape)}; for {n} "
                    f"ids it must be {dtype} {list(shape)}"
                )
        if n > 1 and not bool((ids[1:] > ids[:-1]).all()):
            raise ValueError(f"table {name!r}: a chunk's ids must ascend, each id once")
        if n and table.rows is not None:
            for id_ in (int(ids[0]), int(ids[-1])):
                if not 0 <= id_ < table.rows:
                    raise self.outside(id_)

    def _other_state(self, found: list[str], wanted: list[str]) -> str:
        """What is wrong with a chunk whose state is not the optimizer's."""
        holds = f"the state {', '.join(found)}" if found else "no state"
        keeps = (
            f"{self.optimizer.name} keeps {', '.join(wanted)}" if wanted else "none is kept here"
        )
        told = f"table {self.table.name!r}: saved rows hold {holds}, and {keeps}: "
        if not found and self.optimizer.state_names():
            return told + (
                "they come from servers in mode geo, which keep no state, or from another "
                "optimizer; go on with strategy.ps.mode=geo, or with the optimizer that wrote them"
            )
        if not wanted:
            told += "servers in mode geo keep no state, and neither does sgd; "
        return told + "go on with the optimizer, and on servers the mode, that wrote them"

    def state_shapes(self, n: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every piece of state, and of every counter, of a chunk of n rows."""
        return state_shapes_of(self.optimizer, self.table.dim, n, self.admission is not None)

    def assign(self, ids: Tensor, values: Tensor) -> None:
        """Set the values of rows, distinct ids [n], values [n, dim]; their state stays."""
        ids = self.flat_ids(ids)
        self._assign(ids, self.flat_grads(values, ids.numel()))

    def _assign(self, ids: Tensor, values: Tensor) -> None:
        raise NotImplementedError  # every leaf in host memory writes its own

    def decay(self, factor: float) -> None:
        """Multiply all counters, of rows and of ids without one."""
        self.check_counted("decay")

    def shrink(self, rule: Shrink) -> int:
        """Drop rows; returns how many went."""
        self.check_shrink(rule)
        return 0

    def export_pending(self, chunk_rows: int = 1 << 20) -> Iterator[Pending]:
        """Counters of the ids without a row, in chunks of ascending id."""
        return iter(())

    def restore_pending(self, pending: Pending) -> None:
        """Take over counters of ids without a row."""
        self.check_pending(pending)

    def check_clicks(self, clicks: Tensor | None, n: int) -> Tensor | None:
        """Clicks as the engines take them: [n] float32, one for each id pushed."""
        if clicks is None:
            return None
        if self.admission is None:
            raise ValueError(
                f"table {self.table.name!r} keeps no counters: make it with admission=Admission()"
            )
        if clicks.dtype != torch.float32 or clicks.shape != (n,):
            raise ValueError(
                f"table {self.table.name!r}: clicks are {clicks.dtype} {list(clicks.shape)}; for "
                f"{n} ids they must be torch.float32 [{n}]"
            )
        return clicks.detach().cpu().contiguous()

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

    def check_pending(self, pending: Pending) -> None:
        """Refuse counters that do not fit, before anything is changed."""
        self.check_counted("restore of counters")
        n = pending.ids.numel()
        parts = {"ids": (pending.ids, torch.int64)}
        parts |= {key: (getattr(pending, key), dtype) for key, dtype in COUNTERS.items()}
        for key, (part, dtype) in parts.items():
            if part.dtype != dtype or part.shape != (n,):
                raise ValueError(
                    f"table {self.table.name!r}: counters' {key} is {part.dtype} "
                    f"{list(part.shape)}; it must be {dtype} [{n}]"
                )
        if n > 1 and not bool((pending.ids[1:] > pending.ids[:-1]).all()):
            raise ValueError(f"table {self.table.name!r}: counters' ids must ascend, each id once")

    @property
    def filter_facts(self) -> tuple[int, int]:
        """Bytes and layout of the Bloom filter; (0, 0) where ids are counted exactly."""
        return 0, 0

    def export_filter(self, chunk_bytes: int = 1 << 28) -> Iterator[Filter]:
        """The Bloom filter in parts; none where ids are counted exactly."""
        return iter(())

    def restore_filter(self, part: Filter) -> None:
        """Take over a part of a Bloom filter; one that does not fit changes nothing."""
        if not self.filter_fits(part):
            size, layout = self.filter_facts
            here = f"the table's has {size} of layout {layout}" if size else "the table has none"
            raise ValueError(
                f"table {self.table.name!r}: a Bloom filter of {part.size} bytes of layout "
                f"{part.layout}, and {here}: restore with the bloom_counters that wrote it"
            )

    def filter_fits(self, part: Filter) -> bool:
        """Whether a part is of a filter like this table's; one that cannot be is refused."""
        self.check_counted("restore of counters")
        return fits(part, self.table.name, self.admission, self.filter_facts)

    def mark(self) -> int:
        """A point in time that `export` can take up from; 0: it cannot tell what changes."""
        return 0

    def check_mark(self, since: int, oldest: int, newest: int) -> None:
        """Refuse a mark that was never given, or is too old to know what came after."""
        if not max(oldest, 1) <= since <= newest:
            raise ValueError(
                f"table {self.table.name!r}: mark {since} is not known; marks {max(oldest, 1)} to "
                f"{newest} are: export all rows instead"
            )


def state_shapes_of(
    optimizer: RowOptimizer, dim: int, n: int, counted: bool
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of what is kept of n rows besides their values [n, dim]."""
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        key: ((n, dim) if kind == "dim" else (n,), torch.float32)
        for key, kind in optimizer.state_names().items()
    }
    if counted:
        shapes |= {key: ((n,), dtype) for key, dtype in COUNTERS.items()}
    return shapes


@cache
def every_id(table: Table) -> Tensor:
    """The id of every row of a fixed table; one tensor for all who ask, not to be written to."""
    if table.rows is None:
        raise ValueError(f"table {table.name!r} grows: it has no last row")
    return torch.arange(table.rows)


def fits(
    part: Filter, table: str, admission: Admission | None, filter_facts: tuple[int, int]
) -> bool:
    """Whether a part is of a Bloom filter like a store's; one that cannot be is refused."""
    counters, stop = part.counters, part.start + part.counters.numel()
    if counters.dtype != torch.uint8 or counters.dim() != 1 or not len(counters):
        raise ValueError(
            f"table {table!r}: a Bloom filter's counters are {counters.dtype} "
            f"{list(counters.shape)}; they must be torch.uint8 [n], n at least 1"
        )
    if not 0 <= part.start < stop <= part.size:
        raise ValueError(
            f"table {table!r}: bytes {part.start} to {stop} of a Bloom filter of {part.size}"
        )
    same_cut = admission is not None and part.share[1] == admission.share[1]
    return same_cut and (part.size, part.layout) == filter_facts
