"""Native: the leaf in C++ (csrc/). Same answers as the reference, at the speed of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from shoal.embedding.init import recipe
from shoal.embedding.leaf import Leaf
from shoal.embedding.optim import STATE, RowOptimizer
from shoal.embedding.pooling import Bags
from shoal.embedding.store import Rows
from shoal.embedding.table import Table

try:
    from shoal import _core  # type: ignore[attr-defined]
except ImportError:  # built without a compiler: shoal.embedding.local falls back
    _core = None

INIT_KINDS = ("uniform", "normal", "constant")


class Native(Leaf):
    """Rows of one table in the native core. Safe for one writer and many readers at once."""

    def __init__(
        self, table: Table, optimizer: RowOptimizer, seed: int, *, threads: int | None = None
    ):
        super().__init__(table, optimizer, seed)
        if _core is None:
            raise ValueError(
                "the native core is not built: install a C++ compiler and reinstall shoal, or use "
                'backend="reference"'
            )
        self.threads = threads
        self._pieces = list(optimizer.state_names())
        made = recipe(table, seed)
        self._core = _core.make_table(
            table.dim,
            -1 if table.rows is None else table.rows,
            table.padding is not None,
            table.padding or 0,
            False,
            INIT_KINDS.index(made.kind),
            made.key,
            made.factor,
            list(STATE).index(optimizer.name),
            _hyper(optimizer),
            self._parts(),
        )

    def __len__(self) -> int:
        """Rows held: all of a fixed table, those that learned of a growing one."""
        return len(self._core)

    @property
    def memory(self) -> int:
        """Bytes that rows, their state and the index take."""
        return self._core.bytes

    def pull(self, ids: Tensor) -> Tensor:
        """Rows of `ids` [n]: [n, dim]. An id that never learned reads as its initial value."""
        return pull_many([self], [ids])[0]

    def push(self, ids: Tensor, grads: Tensor, lr: float) -> None:
        """One optimizer step of the rows of `ids` [n] by `grads` [n, dim], duplicates summed."""
        push_many([self], [ids], [grads], lr)

    def pull_bags(self, ids: Tensor, bags: Bags) -> Tensor:
        """Pooled rows, without making the single ones: [bags, dim]."""
        ids = self.flat_ids(ids)
        out = torch.empty(bags.count, self.table.dim)
        coefficients = _addresses([bags.coefficients])[0]
        wrong = self._core.pull_pooled(
            ids.data_ptr(),
            ids.numel(),
            bags.offsets.data_ptr(),
            bags.count,
            coefficients,
            out.data_ptr(),
            self._parts(),
        )
        _refuse([self], [ids], wrong)
        return out

    def push_bags(self, ids: Tensor, bags: Bags, grads: Tensor, lr: float) -> None:
        """One optimizer step by the gradients of bags [bags, dim]."""
        grads = self.flat_grads(grads, bags.count)
        _push([self], [self.flat_ids(ids)], [grads], [bags.bag_of], [bags.coefficients], lr)

    def dot_bags(self, ids: Tensor, bags: Bags, grads: Tensor) -> Tensor:
        """Of each id's row and its bag's gradient: [n]."""
        ids, grads = self.flat_ids(ids), self.flat_grads(grads, bags.count)
        out = torch.empty(ids.numel())
        wrong = self._core.dot(
            ids.data_ptr(), ids.numel(), bags.bag_of.data_ptr(), grads.data_ptr(), out.data_ptr()
        )
        _refuse([self], [ids], wrong)
        return out

    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row held, in chunks of ascending id."""
        if self.table.rows is not None:
            ids = torch.arange(self.table.rows)
        else:
            ids = torch.empty(len(self), dtype=torch.int64)
            self._core.sorted_ids(ids.data_ptr())
        for start in range(0, len(ids), chunk_rows):
            yield self._read(ids[start : start + chunk_rows].clone())

    def restore(self, rows: Rows) -> None:
        """Take over rows, values and state; a chunk that does not fit changes nothing."""
        self.check_rows(rows)
        ids, values = rows.ids.contiguous(), rows.values.contiguous()
        state = [rows.state[key].contiguous() for key in self._pieces]
        self._core.write(ids.data_ptr(), len(ids), values.data_ptr(), _addresses(state))

    def _read(self, ids: Tensor) -> Rows:
        values = torch.empty(len(ids), self.table.dim)
        shapes = self.state_shapes(len(ids))
        state = {key: torch.empty(shapes[key][0], dtype=shapes[key][1]) for key in self._pieces}
        addresses = _addresses(list(state.values()))
        self._core.read(ids.data_ptr(), len(ids), values.data_ptr(), addresses)
        return Rows(ids, values, state)

    def _parts(self) -> int:
        return self.threads or torch.get_num_threads()


def pull_many(stores: Sequence[Native], ids: Sequence[Tensor]) -> list[Tensor]:
    """Rows of several tables in one call: ids[t] [n_t] -> [n_t, dim_t]."""
    flat = [store.flat_ids(part) for store, part in zip(stores, ids, strict=True)]
    counts = [part.numel() for part in flat]
    out = [torch.empty(n, store.table.dim) for store, n in zip(stores, counts)]
    wrong = _core.pull(
        [store._core for store in stores],
        _addresses(flat),
        counts,
        _addresses(out),
        _parts(stores),
    )
    _refuse(stores, flat, wrong)
    return out


def push_many(
    stores: Sequence[Native],
    ids: Sequence[Tensor],
    grads: Sequence[Tensor],
    lr: float | Sequence[float],
) -> None:
    """One optimizer step of several tables in one call; `lr` for all or one for each."""
    flat = [store.flat_ids(part) for store, part in zip(stores, ids, strict=True)]
    flat_grads = [s.flat_grads(g, i.numel()) for s, i, g in zip(stores, flat, grads, strict=True)]
    none = [None] * len(stores)
    _push(stores, flat, flat_grads, none, none, lr)


def _push(
    stores: Sequence[Native],
    flat: list[Tensor],
    grads: list[Tensor],
    sources: Sequence[Tensor | None],
    coefficients: Sequence[Tensor | None],
    lr: float | Sequence[float],
) -> None:
    """The step itself: occurrence i of table t has the gradient
    coefficients[t][i] * grads[t][sources[t][i]]."""
    if len(set(map(id, stores))) < len(stores):
        names = [store.table.name for store in stores]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"table {twice!r} is named twice: join its ids and gradients first")
    rates = [lr] * len(stores) if isinstance(lr, float | int) else list(lr)
    numbers: list[float] = []
    for store, rate in zip(stores, rates, strict=True):
        size, eps = store.optimizer.step_numbers(rate, store._step + 1)
        decoupled = store.optimizer.weight_decay if store.optimizer.name == "adamw" else 0.0
        numbers += (size, eps, rate, 1.0 - rate * (decoupled or 0.0))
    wrong = _core.push(
        [store._core for store in stores],
        _addresses(flat),
        [part.numel() for part in flat],
        _addresses(grads),
        _addresses(sources),
        _addresses(coefficients),
        numbers,
        [store._step + 1 for store in stores],
        _parts(stores),
    )
    _refuse(stores, flat, wrong)
    for store in stores:
        store._step += 1


def _parts(stores: Sequence[Native]) -> int:
    return max((store._parts() for store in stores), default=1)


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def _refuse(stores: Sequence[Native], ids: Sequence[Tensor], wrong: int) -> None:
    """Raise for the id that the core found outside a table (table << 40 | position)."""
    if wrong >= 0:
        which = wrong >> 40
        raise stores[which].outside(int(ids[which][wrong & ((1 << 40) - 1)]))


def _hyper(optimizer: RowOptimizer) -> list[float]:
    """Hyper-parameters in the order csrc/module.cpp reads them."""
    rest2 = optimizer.alpha if optimizer.name == "rmsprop" else optimizer.betas[1]
    return [
        1.0 - optimizer.betas[0],
        1.0 - rest2,
        optimizer.momentum,
        optimizer.l1,
        optimizer.l2,
        optimizer.beta,
        optimizer.weight_decay or 0.0,
        optimizer.clip or 0.0,
        optimizer.initial_accumulator_value,
    ]
