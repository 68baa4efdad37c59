"""geo: a worker updates its own copies, and every `geo_step` batches all copies are merged.

Rows: shoal.ps.worker.copies. For dense parameters, too, the servers add up changes.
"""

from typing import Any

import torch
from torch import Tensor

from shoal.embedding.rows.table import Table
from shoal.embedding.service import RowService
from shoal.optimizers.dense import make_optimizer
from shoal.ps.worker.copies import GeoRows
from shoal.ps.worker.lease import Lease
from shoal.training.strategies.base import Sums
from shoal.training.strategies.ps import ParameterServers


class Geo(ParameterServers):
    """Local steps; differences travel now and then."""

    cannot_count = (
        "in mode geo workers update copies of their own and send sums of changes, so no server "
        "sees how often an id came, and a change would be added to a row that was dropped "
        "meanwhile; use strategy.ps.mode sync or async, or leave the section out"
    )
    cannot_narrow = (
        "in mode geo workers send sums of changes, which are float32: use strategy.ps.mode sync or "
        "async, or leave it out"
    )

    def setup(
        self, model: Any, optimizer: Any, seed: int, clip_grad_norm: Any = None, **options: Any
    ) -> None:
        super().setup(model, optimizer, seed, clip_grad_norm, **options)
        self.dense_optimizer = make_optimizer(optimizer, self.dense)
        self._begun = [p.detach().clone() for p in self.dense]
        self._batches = 0

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        self.client, self.prefetches = self._say_hello(tables), False  # most rows are here already
        self.window = GeoRows(
            self.client, tables, self.row_optimizers, self.seed, self.world.device
        )
        return self.window

    def begin_lease(self, lease: Lease) -> None:
        super().begin_lease(lease)
        self._batches, self._begun = 0, [p.detach().clone() for p in self.dense]
        self.window.begin_window()

    @property
    def _sharers(self) -> int:
        """Workers whose differences are added up, by which each divides its own."""
        return self.world.size if self.client.lease is None else self.client.lease.workers

    def update(self, sums: Sums, lr: float) -> Tensor:
        scale = 1.0 / float(sums.count) if float(sums.count) else 0.0
        gradients = self.rows.collect().rows
        if self.dense_optimizer is not None:
            for parameter in self.dense:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
            self.dense_optimizer.step(lr)
        self.rows.apply(gradients, lr, scale)
        self._batches += 1
        if self._batches % self.section.geo_step == 0:
            self._end_window()
        return sums.loss * scale

    def _end_window(self) -> None:
        """Push what changed to the servers, and continue with what they have then."""
        before, workers = self.client.bytes_sent, self._sharers
        dense = None
        if self.dense_at_servers:
            with torch.no_grad():
                deltas = [(p - b) / workers for p, b in zip(self.dense, self._begun)]
            dense = self._split(deltas)
        _, _, values = self.window.submit_changes(workers, dense).wait()
        if self.dense_at_servers:
            self._take_dense(values)
        elif self.dense:
            flat = self.world.all_reduce(torch.cat([p.detach().reshape(-1) for p in self.dense]))
            position = 0
            with torch.no_grad():
                for parameter in self.dense:
                    piece = flat[position : position + parameter.numel()]
                    parameter.copy_(piece.view_as(parameter) / workers)
                    position += parameter.numel()
        self._begun = [p.detach().clone() for p in self.dense]
        self.window.begin_window()
        self.world.bytes_sent += self.client.bytes_sent - before

    def synchronize(self) -> None:
        lease = self.client.lease
        if not self.elastic or (lease is not None and lease.pushed < lease.computed):
            self._end_window()
        super().synchronize()
        self._begun = [p.detach().clone() for p in self.dense]

    def dense_state(self) -> dict[str, Tensor]:
        """Nothing: every worker's optimizer has its own state, which a resumed run forgets."""
        return {}

    def restore_dense(self, tensors: dict[str, Tensor]) -> None:
        super().restore_dense({})
        self._begun = [p.detach().clone() for p in self.dense]
        self.window.begin_window()
