"""Device: the engine of fixed tables in plain torch, on any device.

It holds the output tables of CPUs, which are lent to a softmax without a copy and may be updated by
it (softmax/fused_cpu.py), and the tables of a GPU without Triton. Nothing waits for the device:
repeated ids are found by sorting, and each of them writes the same new row. When every row has a
gradient, rows are updated where they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.embedding.engines.init import initial_rows
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.optim.dense import adam_step
from shoal.embedding.optim.rows import RowOptimizer, update_rows
from shoal.embedding.store import Every, Ids, Rows
from shoal.embedding.table import Table


class Device(RowEngine):
    """Rows of one fixed table as tensors on a device."""

    def __init__(
        self,
        table: Table,
        optimizer: RowOptimizer,
        seed: int,
        device: torch.device | str,
        fused: bool = False,
    ):
        super().__init__(table, optimizer, seed)
        if table.rows is None:
            raise ValueError(
                f"table {table.name!r} grows, and on a {torch.device(device).type} device tables "
                "are fixed: give it a number of rows, or keep it in host memory"
            )
        self.device = torch.device(device)
        self.values = initial_rows(table, seed, torch.arange(table.rows, device=self.device))
        self.state = self.begun_state(table.rows, self.device)
        self.fused = fused  # whether rows may learn where nobody sees their gradients
        self.spare = torch.empty(0)  # memory that a softmax over the rows left for the next one

    def __len__(self) -> int:
        """All rows of the table."""
        return len(self.values)

    def lend(self) -> Tensor:
        """The rows themselves, [rows, dim], to be read until the next push."""
        return self.values

    def pull(self, ids: Ids) -> Tensor:
        """Rows of `ids` [n]: [n, dim]."""
        if isinstance(ids, Every):
            return self.values.clone()
        return self.values.index_select(0, self.ids_inside(ids))

    def push(self, ids: Ids, grads: Tensor, lr: float, counts: Tensor | None = None) -> None:
        """One optimizer step of the rows of `ids` [n] by `grads` [n, dim], duplicates summed."""
        self.flat_counts(counts, len(grads))  # none: its ids are not counted
        whole = isinstance(ids, Every)
        ids = self.ids_inside(ids)
        grads = self.flat_grads(grads, len(ids))
        self._step += 1
        if whole:
            self._update_all(grads, lr)
            return
        if len(ids) == 0:
            return
        ids, order = ids.sort(stable=True)
        is_new = torch.ones_like(ids, dtype=torch.bool)
        torch.ne(ids[1:], ids[:-1], out=is_new[1:])
        group = is_new.cumsum(0) - 1  # 0 0 1 2 2 ...
        summed = torch.zeros_like(grads).index_add_(0, group, grads.index_select(0, order))
        grads = summed.index_select(0, group)  # the same sum wherever an id is repeated
        old = {"": self.values, **self.state}
        new = {key: part.index_select(0, ids) for key, part in old.items()}
        values = new.pop("")
        update_rows(self.optimizer, values, new, grads, lr, self._step)
        for key, part in {"": values, **new}.items():
            if self.table.padding is not None:
                is_padding = (ids == self.table.padding).view(-1, *[1] * (part.dim() - 1))
                part = torch.where(is_padding, old[key].index_select(0, ids), part)
            old[key].index_copy_(0, ids, part)

    def _update_all(self, grads: Tensor, lr: float) -> None:
        """A step of every row, in place."""
        padding, chosen = self.table.padding, self.optimizer
        if padding is not None:
            grads[padding] = 0.0
        if chosen.name in ("adam", "adamw") and chosen.clip is None:
            self._adam_step(grads, lr)
        else:
            update_rows(chosen, self.values, self.state, grads, lr, self._step)
        if padding is not None:
            self.values[padding] = 0.0  # ftrl and decay leave it alone, rounding must as well

    def _adam_step(self, grads: Tensor, lr: float) -> None:
        """Adam in one pass over values and state."""
        chosen, eps = self.optimizer, self.optimizer.eps
        if chosen.sparse_eps:
            eps /= math.sqrt(1.0 - chosen.betas[1] ** self._step)
        steps = torch.full((), self._step - 1.0, device=self.device)
        state = {key: [part] for key, part in {**self.state, "step": steps}.items()}
        adam_step(
            [self.values],
            [grads.contiguous()],
            state,
            lr * chosen.lr_factor,
            chosen.weight_decay,
            decoupled=chosen.name == "adamw",
            betas=chosen.betas,
            eps=eps,
        )

    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row, in chunks of ascending id, in host memory."""
        for start in range(0, len(self.values), chunk_rows):
            part = slice(start, start + chunk_rows)
            ids = torch.arange(len(self.values))[part]
            state = {key: piece[part].cpu().clone() for key, piece in self.state.items()}
            yield Rows(ids, self.values[part].cpu().clone(), state)

    def restore(self, rows: Rows) -> None:
        """Take over rows, values and state; a chunk that does not fit changes nothing."""
        self.check_rows(rows)
        rows = self.real_rows(rows)
        ids = rows.ids.to(self.device)
        self.values[ids] = rows.values.to(self.device)
        for key, part in rows.state.items():
            self.state[key][ids] = part.to(self.device)
