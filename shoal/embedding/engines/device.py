"""Device: the engine of fixed tables in plain torch, on any device.

It holds the output tables of CPUs, which a softmax reads without a copy and may be updated by
it (softmax/fused_cpu.py), and the tables of a GPU without Triton. When every row has a gradient,
rows are updated where they are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal.embedding.engines.reference import Reference
from shoal.embedding.rows.store import Every, Ids
from shoal.embedding.rows.table import Table
from shoal.optimizers.dense import adam_step
from shoal.optimizers.row_optimizer import RowOptimizer, update_rows


class Device(Reference):
    """Rows of one fixed table as tensors on a device."""

    def __init__(
        self,
        table: Table,
        optimizer: RowOptimizer,
        seed: int,
        device: torch.device | str,
        fused: bool = False,
    ):
        super().__init__(table, optimizer, seed, device=device)
        if table.rows is None:
            raise ValueError(
                f"table {table.name!r} grows, and on a {self.device.type} device tables "
                "are fixed: give it a number of rows, or keep it in host memory"
            )
        self.fused = fused  # whether a kernel may update rows without writing gradients
        self.spare = torch.empty(0)  # memory that a softmax over the rows left for the next one

    def view_rows(self) -> Tensor:
        return self.values

    def mark(self) -> int:
        """0: a softmax that updates rows does not note which."""
        return 0

    def push(self, ids: Ids, grads: Tensor, lr: float, counts: Tensor | None = None) -> None:
        if not isinstance(ids, Every):
            super().push(ids, grads, lr, counts)
            return
        grads = self.flat_grads(grads, len(self))
        self._step += 1
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
