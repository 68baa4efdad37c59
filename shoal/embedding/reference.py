"""Reference: the leaf in plain torch. The oracle of the native core, and its fall-back."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.embedding.init import initial_rows
from shoal.embedding.leaf import Leaf
from shoal.embedding.optim import RowOptimizer, update_rows
from shoal.embedding.pooling import Bags
from shoal.embedding.store import Rows
from shoal.embedding.table import Table

INIT_CHUNK = 1 << 16  # rows initialised at a time, so that temporaries stay small
DENSE_FACTOR = 4  # sum duplicates over the whole table when it has at most 4 rows per id given


class Reference(Leaf):
    """Rows of one table in torch tensors. A growing table keeps a Python dict: id -> position."""

    def __init__(self, table: Table, optimizer: RowOptimizer, seed: int):
        super().__init__(table, optimizer, seed)
        size = table.rows or 0
        self.positions: dict[int, int] = {}  # growing tables only
        self.values = torch.empty(size, table.dim)
        self.state = {
            key: torch.full((size, table.dim) if kind == "dim" else (size,), begin)
            for (key, kind), begin in zip(
                optimizer.state_names().items(), optimizer.initial_state().values()
            )
        }
        for start in range(0, size, INIT_CHUNK):
            ids = torch.arange(start, min(start + INIT_CHUNK, size))
            self.values[start : start + INIT_CHUNK] = initial_rows(table, seed, ids)

    def pull(self, ids: Tensor) -> Tensor:
        """Rows of `ids` [n]: [n, dim]. An id that never learned reads as its initial value."""
        ids = self.flat_ids(ids)
        if self.table.rows is not None:
            self._check_inside(ids)
            return self.values.index_select(0, ids)
        out = initial_rows(self.table, self.seed, ids)
        found = torch.tensor([self.positions.get(i, -1) for i in ids.tolist()], dtype=torch.int64)
        known = found >= 0
        out[known] = self.values[found[known]]
        return out

    def push(self, ids: Tensor, grads: Tensor, lr: float) -> None:
        """One optimizer step of the rows of `ids` [n] by `grads` [n, dim], duplicates summed."""
        ids = self.flat_ids(ids)
        grads = self.flat_grads(grads, ids.numel())
        if self.table.rows is not None:
            self._check_inside(ids)
        self._step += 1
        if self.table.padding is not None:
            keep = ids != self.table.padding
            if not bool(keep.all()):
                ids, grads = ids[keep], grads[keep]
        if len(ids) == 0:
            return
        positions, summed = self._sum_duplicates(ids, grads)
        if self.table.rows is None:
            positions = self._insert(positions)
        values = self.values.index_select(0, positions)
        state = {key: part.index_select(0, positions) for key, part in self.state.items()}
        update_rows(self.optimizer, values, state, summed, lr, self._step)
        self.values.index_copy_(0, positions, values)
        for key, part in state.items():
            self.state[key].index_copy_(0, positions, part)

    def pull_bags(self, ids: Tensor, bags: Bags) -> Tensor:
        """Pooled rows: [bags, dim]."""
        rows = self.pull(ids)
        if bags.coefficients is not None:
            rows = rows * bags.coefficients[:, None]
        return torch.zeros(bags.count, self.table.dim).index_add_(0, bags.bag_of, rows)

    def push_bags(self, ids: Tensor, bags: Bags, grads: Tensor, lr: float) -> None:
        """One optimizer step by the gradients of bags [bags, dim]."""
        each = self.flat_grads(grads, bags.count).index_select(0, bags.bag_of)
        if bags.coefficients is not None:
            each = each * bags.coefficients[:, None]
        self.push(ids, each, lr)

    def dot_bags(self, ids: Tensor, bags: Bags, grads: Tensor) -> Tensor:
        """Of each id's row and its bag's gradient: [n]."""
        each = self.flat_grads(grads, bags.count).index_select(0, bags.bag_of)
        return (self.pull(ids) * each).sum(dim=1)

    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row held, in chunks of ascending id."""
        if self.table.rows is not None:
            ids = order = torch.arange(self.table.rows)
        else:
            ids, order = torch.tensor(list(self.positions), dtype=torch.int64).sort()
        for start in range(0, len(ids), chunk_rows):
            at = order[start : start + chunk_rows]
            state = {key: part[at] for key, part in self.state.items()}
            yield Rows(ids[start : start + chunk_rows].clone(), self.values[at], state)

    def restore(self, rows: Rows) -> None:
        """Take over rows, values and state; a chunk that does not fit changes nothing."""
        self.check_rows(rows)
        if self.table.padding is not None:  # it reads as zeros, whatever the chunk says
            keep = rows.ids != self.table.padding
            state = {key: part[keep] for key, part in rows.state.items()}
            rows = Rows(rows.ids[keep], rows.values[keep], state)
        positions = rows.ids if self.table.rows is not None else self._insert(rows.ids)
        self.values[positions] = rows.values
        for key, part in rows.state.items():
            self.state[key][positions] = part

    def _check_inside(self, ids: Tensor) -> None:
        if len(ids):
            for bound in ids.aminmax():
                if not 0 <= int(bound) < self.table.rows:  # type: ignore[operator]
                    raise self.outside(int(bound))

    def _sum_duplicates(self, ids: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
        """The distinct ids, ascending, and the sum of each one's gradients, in order of arrival."""
        rows = self.table.rows
        backward = torch.ops.aten.embedding_dense_backward
        if rows is not None and rows <= DENSE_FACTOR * len(ids):
            touched = torch.zeros(rows, dtype=torch.bool)
            touched[ids] = True
            distinct = touched.nonzero().squeeze(1)
            summed = backward(grads, ids, rows, -1, False)
            return distinct, summed.index_select(0, distinct)
        distinct, inverse = torch.unique(ids, return_inverse=True)
        return distinct, backward(grads, inverse, len(distinct), -1, False)

    def _insert(self, ids: Tensor) -> Tensor:
        """Positions of distinct `ids` of a growing table; new ones begin at their initial value."""
        fresh = [i for i in ids.tolist() if i not in self.positions]
        if fresh:
            begin = len(self.positions)
            end = begin + len(fresh)
            self.positions.update(zip(fresh, range(begin, end)))
            while len(self.values) < end:
                self._double()
            new_ids = torch.tensor(fresh, dtype=torch.int64)
            self.values[begin:end] = initial_rows(self.table, self.seed, new_ids)
        return torch.tensor([self.positions[i] for i in ids.tolist()], dtype=torch.int64)

    def _double(self) -> None:
        more = max(1024, len(self.values))
        self.values = torch.cat([self.values, torch.zeros(more, self.table.dim)])
        for key, begin in self.optimizer.initial_state().items():
            part = self.state[key]
            self.state[key] = torch.cat([part, torch.full((more, *part.shape[1:]), begin)])
