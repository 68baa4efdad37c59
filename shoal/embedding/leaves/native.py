"""Native: the leaf in C++ (csrc/). Same answers as the reference, at the speed of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from shoal.embedding.leaves.admission import ALONE, Admission, Filter, Pending, Shrink
from shoal.embedding.leaves.init import recipe
from shoal.embedding.leaves.leaf import COUNTERS, Leaf
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.store import Ids, Rows
from shoal.embedding.table import Table
from shoal.world.board import Board
from shoal.world.core import load_core
from shoal.world.neighbours import Shared

_core = load_core()  # None: shoal.embedding.leaves.local falls back
INIT_KINDS = ("uniform", "normal", "constant")
BLOOM_PARTS = 32  # of equal size, kShards in csrc/table.h


class Native(Leaf):
    """Rows of one table in the native core. Safe for one writer and many readers at once."""

    def __init__(
        self,
        table: Table,
        optimizer: RowOptimizer,
        seed: int,
        admission: Admission | None = None,
        *,
        threads: int | None = None,
        shared: Shared | None = None,
    ):
        """shared: memory for a fixed table that all ranks of this host make and push alike.

        Each updates its part of the rows, so they must wait for each other before anyone reads.
        """
        super().__init__(table, optimizer, seed, admission)
        if _core is None:
            raise ValueError(
                "the native core is not built: install a C++ compiler and run `make setup`, or use "
                'backend="reference"'
            )
        if threads is not None and threads < 1:
            raise ValueError(f"table {table.name!r}: threads is {threads}; it must be 1 or more")
        self.threads, self.shared = threads, shared is not None
        self._pieces = list(optimizer.state_names())
        self._counters = [] if admission is None else list(COUNTERS)
        self._newest_mark = 0
        made = recipe(table, seed)
        rule = admission or Admission()
        self._core = _core.make_table(
            table.dim,
            -1 if table.rows is None else table.rows,
            table.padding is not None,
            table.padding or 0,
            table.half,
            [] if table.numbering is None else list(astuple(table.numbering)),
            INIT_KINDS.index(made.kind),
            made.key,
            made.factor,
            _hyper(optimizer),
            _state(optimizer),
            admission is not None,
            [rule.threshold, rule.show_coefficient, rule.click_coefficient],
            rule.bloom_counters if rule.threshold > 0 else 0,
            _parts([self]),
            *((-1, 0, 1) if shared is None else (shared.file, shared.rank, shared.ranks)),
        )

    def __len__(self) -> int:
        """Rows held: all of a fixed table, those that learned of a growing one."""
        return len(self._core)

    @property
    def memory(self) -> int:
        """Bytes that rows, their state and the index take."""
        return self._core.bytes

    def pull(self, ids: Ids) -> Tensor:
        """Rows of `ids` [n]: [n, dim]. An id that never learned reads as its initial value."""
        return self.pull_many([self], [ids])[0]

    def push(self, ids: Ids, grads: Tensor, lr: float, counts: Tensor | None = None) -> None:
        """One optimizer step of the rows of `ids` [n] by `grads` [n, dim], duplicates summed."""
        self.push_many([self], [ids], [grads], lr, counts=self.flat_counts(counts, len(grads)))

    @classmethod
    def pull_many(
        cls, leaves: Sequence[Native], ids: Sequence[Ids], learn: bool = False
    ) -> list[Tensor]:
        flat = [leaf.flat_ids(part) for leaf, part in zip(leaves, ids, strict=True)]
        counts = [part.numel() for part in flat]
        out = [torch.empty(n, leaf.table.dim) for leaf, n in zip(leaves, counts)]
        cores = [leaf._core for leaf in leaves]
        wrong = _core.pull(cores, _addresses(flat), counts, _addresses(out), _parts(leaves))
        _refuse(leaves, flat, wrong)
        return out

    @classmethod
    def push_many(
        cls,
        leaves: Sequence[Native],
        ids: Sequence[Ids],
        grads: Sequence[Tensor],
        lr: float,
        pulled: bool = False,
        counts: Tensor | None = None,
    ) -> None:
        """As Leaf.push_many; counts: of the ids of the only leaf."""
        flat = [leaf.flat_ids(part) for leaf, part in zip(leaves, ids, strict=True)]
        grads = [s.flat_grads(g, i.numel()) for s, i, g in zip(leaves, flat, grads, strict=True)]
        columns = [None, None] if counts is None else [one.contiguous() for one in counts.unbind(1)]
        wrong = _core.push(
            [leaf._core for leaf in leaves],
            _addresses(flat),
            [part.numel() for part in flat],
            _addresses(grads),
            [len(part) for part in grads],
            _addresses([columns[1]] * len(leaves)),
            _addresses([columns[0]] * len(leaves)),
            *_next_steps(leaves, lr),
            _parts(leaves),
        )
        _refuse(leaves, flat, wrong)
        for leaf in leaves:
            leaf._step += 1

    @classmethod
    def push_posted(
        cls,
        leaves: Sequence[Native],
        board: Board,
        numbers: Sequence[int],
        lr: float,
        scale: float,
    ) -> None:
        """One step of leaves that ranks share, by the gradients of all that lie on the board.

        numbers[k]: of leaves[k] there. Each rank updates its part of the rows. scale: what the
        gradients are multiplied by.
        """
        cores = [leaf._core for leaf in leaves]
        steps = _next_steps(leaves, lr)
        _core.push_board(board.core, numbers, cores, scale, *steps, _parts(leaves))
        for leaf in leaves:
            leaf._step += 1

    def mark(self) -> int:
        """A point in time that `export` can take up from."""
        self._newest_mark = self._core.mark()
        return self._newest_mark

    def decay(self, factor: float) -> None:
        """Multiply all counters, of rows and of ids without one."""
        self.check_counted("decay")
        self._core.decay(factor)

    def shrink(self, rule: Shrink) -> int:
        """Drop rows; returns how many went."""
        self.check_shrink(rule)
        return self._core.shrink(
            rule.min_score,
            rule.min_norm,
            -1 if rule.max_age is None else rule.max_age,
            -1 if rule.capacity is None else rule.capacity,
            rule.order == "lru",
            self._step,
        )

    def export_pending(self, chunk_rows: int = 1 << 20) -> Iterator[Pending]:
        """Counters of the ids without a row, in chunks of ascending id."""
        for ids in _ids(self._core.pending_ids()).split(chunk_rows):
            parts = [torch.empty(len(ids), dtype=dtype) for dtype in COUNTERS.values()]
            if len(ids):
                ids = ids.clone()
                self._core.read_pending(ids.data_ptr(), len(ids), _addresses(parts))
                yield Pending(ids, *parts)

    def restore_pending(self, pending: Pending) -> None:
        """Take over counters of ids without a row; a Bloom filter counts on from them."""
        self.check_pending(pending)
        ids = pending.ids.contiguous()
        parts = [getattr(pending, key).contiguous() for key in COUNTERS]
        self._core.write_pending(ids.data_ptr(), len(ids), _addresses(parts))

    @property
    def filter_facts(self) -> tuple[int, int]:
        """Bytes and layout of the Bloom filter; (0, 0) where ids are counted exactly."""
        return filter_facts_of(self.admission)

    def export_filter(self, chunk_bytes: int = 1 << 28) -> Iterator[Filter]:
        """The Bloom filter in parts; none where ids are counted exactly."""
        size, layout = self.filter_facts
        share = ALONE if self.admission is None else self.admission.share
        for start in range(0, size, chunk_bytes):
            counters = torch.empty(min(chunk_bytes, size - start), dtype=torch.uint8)
            self._core.read_bloom(start, len(counters), counters.data_ptr())
            yield Filter(counters, start, size, layout, share)

    def restore_filter(self, part: Filter) -> None:
        """Take over a part of a Bloom filter; one that does not fit changes nothing."""
        super().restore_filter(part)
        counters = part.counters.contiguous()
        self._core.write_bloom(part.start, len(counters), counters.data_ptr())

    def export(self, chunk_rows: int = 1 << 20, since: int | None = None) -> Iterator[Rows]:
        """Every row held, or those changed after a mark, in chunks of ascending id."""
        if since is not None:
            self.check_mark(since, self._core.oldest_mark, self._newest_mark)
            ids = _ids(self._core.changed_ids(since))
        elif self.table.rows is not None:
            ids = torch.arange(self.table.rows)
        else:
            ids = _ids(self._core.sorted_ids())
        for start in range(0, len(ids), chunk_rows):
            yield self._read(ids[start : start + chunk_rows].clone())

    def restore(self, rows: Rows) -> None:
        """Take over rows, values and state; a chunk that does not fit changes nothing."""
        self.check_rows(rows)
        ids, values = rows.ids.contiguous(), rows.values.contiguous()
        state = [rows.state[key].contiguous() for key in self._pieces]
        counters = [rows.state[key].contiguous() for key in self._counters]
        self._core.write(
            ids.data_ptr(), len(ids), values.data_ptr(), _addresses(state), _addresses(counters)
        )

    def _assign(self, ids: Tensor, values: Tensor) -> None:
        none = [0] * len(self._pieces)
        self._core.write(ids.data_ptr(), len(ids), values.data_ptr(), none, [])

    def _read(self, ids: Tensor) -> Rows:
        values = torch.empty(len(ids), self.table.dim)
        shapes = self.state_shapes(len(ids))
        state = {key: torch.empty(shape, dtype=dtype) for key, (shape, dtype) in shapes.items()}
        self._core.read(
            ids.data_ptr(),
            len(ids),
            values.data_ptr(),
            _addresses([state[key] for key in self._pieces]),
            _addresses([state[key] for key in self._counters]),
        )
        return Rows(ids, values, state)


def filter_facts_of(admission: Admission | None) -> tuple[int, int]:
    """Bytes and layout of the Bloom filter of a table that counts so; (0, 0): it has none."""
    if _core is None or admission is None or admission.threshold <= 0:
        return 0, 0
    size = -(-admission.bloom_counters // BLOOM_PARTS) * BLOOM_PARTS
    return size, _core.BLOOM_LAYOUT if size else 0


def row_reader(stores: Sequence[object], limits: Sequence[int | None]) -> Any:
    """What answers requests for rows of some stores in one call, or None where it cannot be had.

    limits[k]: the rows that may be asked for of stores[k], None: any id. See shoal.ps.wire for what
    a request is; `answer(request, kind)` has the answer, or None when it must be read in Python.
    """
    native = [store for store in stores if isinstance(store, Native)]
    if _core is None or len(native) < len(stores):
        return None
    bounds = [-1 if limit is None else limit for limit in limits]
    return _core.RowReader([store._core for store in native], bounds, _parts(native))


def _next_steps(leaves: Sequence[Native], lr: float) -> tuple[list[Any], list[int]]:
    """The numbers of each leaf's next step, and which one that is."""
    numbers = []
    for leaf in leaves:
        now = leaf.optimizer.numbers(lr, leaf._step + 1)
        numbers.append(_core.StepNumbers(size=now.size, eps=now.eps, lr=now.lr, keep=now.keep))
    return numbers, [leaf._step + 1 for leaf in leaves]


def _parts(leaves: Sequence[Native]) -> int:
    """How many threads share the work."""
    return max((leaf.threads or torch.get_num_threads() for leaf in leaves), default=1)


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def _ids(raw: bytes) -> Tensor:
    """Ids that the core lists: [n] int64."""
    return torch.frombuffer(bytearray(raw), dtype=torch.int64) if raw else torch.empty(0).long()


def _refuse(stores: Sequence[Native], ids: Sequence[Tensor], wrong: int) -> None:
    """Raise for the id that the core found outside a table (table << 40 | position)."""
    if wrong >= 0:
        which = wrong >> 40
        raise stores[which].table.outside(int(ids[which][wrong & ((1 << 40) - 1)]))


def _hyper(optimizer: RowOptimizer) -> Any:
    """Hyper-parameters as the core has them: a struct, of which it reads what the optimizer has."""
    made = _core.Hyper(_core.OPTIMIZERS[optimizer.name])
    made.weight_decay, made.clip = optimizer.weight_decay, optimizer.clip or 0.0
    if optimizer.betas is not None:
        made.rest1, made.rest2 = (1.0 - beta for beta in optimizer.betas)
    if optimizer.alpha is not None:
        made.rest_alpha = 1.0 - optimizer.alpha
    for key in ("momentum", "l1", "l2", "beta"):
        setattr(made, key, getattr(optimizer, key) or 0.0)
    return made


def _state(optimizer: RowOptimizer) -> list[tuple[bool, float]]:
    """Of each piece of state: whether it has a float for every value, and what it begins with."""
    begin = optimizer.initial_state()
    return [(kind == "dim", begin[key]) for key, kind in optimizer.state_names().items()]
