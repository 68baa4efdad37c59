"""RowEngine: what all engines share, the checks of what comes in."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from shoal.embedding.engines.budgets import row_bytes
from shoal.embedding.rows.admission import Admission, Filter, Pending, Shrink
from shoal.embedding.rows.bags import Bags
from shoal.embedding.rows.store import Every, Ids, Rows, Store, flat_ids
from shoal.embedding.rows.table import Table
from shoal.kernels.bags import sum_bags
from shoal.kernels.distinct_ids import add_rows, distinct
from shoal.optimizers.row_optimizer import RowOptimizer

COUNTERS = {"show": torch.float32, "click": torch.float32, "last_step": torch.int64}


@dataclass(frozen=True)
class AdamRows:
    """The memory of a fixed table whose rows learn by Adam."""

    values: Tensor  # [rows, dim]
    first: Tensor  # first and second moments [rows, dim]
    second: Tensor
    numbers: Tensor  # of the present step: step size, eps, learning rate


class RowEngine(ABC):
    """A Store that holds its rows in this process. Subclasses hold the memory."""

    recordable = False  # whether a push may be part of a CUDA graph; see `begin_many`
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

    def stage(self, ids: Sequence[Tensor]) -> None:
        """Put the rows of all ids [n_k] of a recorded step where it reads them, before a replay."""

    def forget(self) -> None:
        """Drop every row of a growing table, and every count."""
        counted = self.admission is not None
        self.shrink(Shrink(min_score=math.inf) if counted else Shrink(min_norm=math.inf))
        if counted:
            self.decay(0.0)  # what a Bloom filter counted

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

    @classmethod
    def begin_many(cls, engines: Sequence[Any], lr: float) -> None:
        """Count a step of engines that are `recordable`: their recorded push is replayed next."""
        for engine in engines:
            engine.begin(lr)

    @abstractmethod
    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row held, in chunks of ascending id."""

    @abstractmethod
    def restore(self, rows: Rows) -> None:
        """Take over rows, values and state; a chunk that does not fit changes nothing."""

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

    def check_rows(self, rows: Rows) -> None:
        """Refuse a chunk that does not fit, before anything is changed."""
        n = rows.ids.numel()
        expected = self.state_shapes(n)
        if rows.state.keys() != expected.keys():
            raise ValueError(self._other_state(sorted(rows.state), sorted(expected)))
        parts = {key: (rows.state[key], *known) for key, known in expected.items()}
        values = rows.values, (n, self.table.dim), torch.float32
        self._check_chunk("a chunk's", rows.ids, {"values": values, **parts})
        self.table.check_ids(rows.ids)

    def _check_chunk(self, owner: str, ids: Tensor, parts: dict[str, Any]) -> None:
        """Refuse ids that do not ascend, and parts of another shape or dtype than expected."""
        name, n = self.table.name, ids.numel()
        for key, (part, shape, dtype) in {"ids": (ids, (n,), torch.int64), **parts}.items():
            if part.dtype != dtype or part.shape != shape:
                raise ValueError(
                    f"table {name!r}: {owner} {key} is {part.dtype} {list(part.shape)}; for "
                    f"{n} ids it must be {dtype} {list(shape)}"
                )
        if n > 1 and not bool((ids[1:] > ids[:-1]).all()):
            raise ValueError(f"table {name!r}: {owner} ids must ascend, each id once")

    def real_rows(self, rows: Rows) -> Rows:
        """A chunk without the padding id, which always reads as zeros."""
        padding = self.table.padding
        return rows if padding is None else rows.select(rows.ids != padding)

    def _other_state(self, saved_names: list[str], expected_names: list[str]) -> str:
        """The error message for a chunk whose state is not the optimizer's."""
        holds = f"the state {', '.join(saved_names)}" if saved_names else "no state"
        keeps = (
            f"{self.optimizer.name} keeps {', '.join(expected_names)}"
            if expected_names
            else "none is kept here"
        )
        message = f"table {self.table.name!r}: saved rows hold {holds}, and {keeps}: "
        if not saved_names and self.optimizer.state_names():
            return message + (
                "they come from servers in mode geo, which keep no state, or from another "
                "optimizer; go on with strategy.ps.mode=geo, or with the optimizer that wrote them"
            )
        if not expected_names:
            message += "servers in mode geo keep no state, and neither does sgd; "
        return message + "go on with the optimizer, and on servers the mode, that wrote them"

    def state_shapes(self, n: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every piece of state, and of every counter, of a chunk of n rows."""
        return state_shapes_of(self.optimizer, self.table.dim, n, self.admission is not None)

    def fresh_state(self, n: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """State and counters of n rows that had no gradient yet."""
        begin = self.optimizer.initial_state()
        return {
            key: torch.full(shape, begin.get(key, 0.0), dtype=dtype, device=device)
            for key, (shape, dtype) in self.state_shapes(n).items()
        }

    def assign(self, ids: Tensor, values: Tensor) -> None:
        """Set the values of rows, distinct ids [n], values [n, dim]; their state stays."""
        if self.admission is not None:
            raise ValueError(f"table {self.table.name!r} keeps counters: restore whole rows")
        ids = self.ids_inside(ids)
        self._assign(ids, self.flat_grads(values, ids.numel()))

    def _assign(self, ids: Tensor, values: Tensor) -> None:
        raise NotImplementedError  # every engine in host memory writes its own

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

    def check_pending(self, pending: Pending) -> None:
        """Refuse counters that do not fit, before anything is changed."""
        self.check_counted("restore of counters")
        shape = (pending.ids.numel(),)
        parts = {key: (getattr(pending, key), shape, dtype) for key, dtype in COUNTERS.items()}
        self._check_chunk("counters'", pending.ids, parts)

    @property
    def filter_facts(self) -> tuple[int, int]:
        """Bytes and layout of the Bloom filter; (0, 0) where ids are counted exactly."""
        return 0, 0

    def export_filter(self, chunk_bytes: int = 1 << 28) -> Iterator[Filter]:
        """The Bloom filter in parts; none where ids are counted exactly."""
        return iter(())

    def restore_filter(self, part: Filter) -> None:
        """Take over a part of a Bloom filter; one that does not fit changes nothing."""
        self.check_counted("restore of counters")
        if not filter_fits(self, part):
            size, layout = self.filter_facts
            own_filter = (
                f"the table's has {size} of layout {layout}" if size else "the table has none"
            )
            raise ValueError(
                f"table {self.table.name!r}: a Bloom filter of {part.size} bytes of layout "
                f"{part.layout}, and {own_filter}: restore with the bloom_counters that wrote it"
            )

    def mark(self) -> int:
        """A point in time that `export` can take up from; 0: changes are not tracked."""
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


def filter_fits(store: Store, part: Filter) -> bool:
    """Whether a part is of a Bloom filter like a store's; one that cannot be is refused."""
    counters, stop = part.counters, part.start + part.counters.numel()
    if counters.dtype != torch.uint8 or counters.dim() != 1 or not len(counters):
        raise ValueError(
            f"table {store.table.name!r}: a Bloom filter's counters are {counters.dtype} "
            f"{list(counters.shape)}; they must be torch.uint8 [n], n at least 1"
        )
    if not 0 <= part.start < stop <= part.size:
        raise ValueError(
            f"table {store.table.name!r}: bytes {part.start} to {stop} of a Bloom filter of "
            f"{part.size}"
        )
    same_cut = store.admission is not None and part.share[1] == store.admission.share[1]
    return same_cut and (part.size, part.layout) == store.filter_facts
