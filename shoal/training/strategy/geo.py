"""geo: a worker updates a copy of its own, and every `geo_step` batches all copies meet.

A window is `geo_step` batches. The first time a window needs a row, it is fetched from the servers
and remembered as it came; from then on the row optimizer runs here. At the end of the window the
servers get what each row changed by, divided by the number of workers, and add it up; the next
window starts from the sum. So a row is never older than a window, and each row that a window
touched makes one trip there and one back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.leaves.local import make_local
from shoal.embedding.leaves.native import Native
from shoal.embedding.leaves.reference import Reference
from shoal.embedding.optim.dense import dense_step, make_optimizer
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.placed.route import Part
from shoal.embedding.store import Store
from shoal.embedding.table import Init, Table
from shoal.models.base import Output
from shoal.ps.worker.client import Share
from shoal.ps.worker.remote import Remote, Trip
from shoal.training.strategy.ps import ParameterServers


class Copy:
    """This worker's own rows of one table, and how those of this window came."""

    def __init__(self, remote: Remote, optimizer: RowOptimizer, seed: int):
        kept = remote.layout.table
        self.remote = remote
        self.leaf = _leaf(kept, optimizer, seed)
        # A column more than the rows have: 1 where a row came in this window.
        self._came = Table(kept.name, kept.dim + 1, None, Init("constant", 0.0))
        self.begin_window()

    def begin_window(self) -> None:
        """Forget what came."""
        self.base = _leaf(self._came, RowOptimizer("sgd"), 0)

    def missing(self, part: Part) -> Share:
        """Those rows of a lookup that this window has not fetched yet, grouped by server."""
        keys = part.keys.cpu()
        new = self.base.pull(keys)[:, -1] == 0
        counts = [int(piece.sum()) for piece in new.split(part.counts)]
        return Share(self.remote.number, keys[new], counts)

    def take(self, ids: Tensor, rows: Tensor) -> None:
        """Rows of this window as they came from the servers."""
        self.base.assign(ids, torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1))
        self.leaf.assign(ids, rows)

    def changes(self, workers: int) -> tuple[Share, Tensor] | None:
        """What the rows of this window changed by, over the number of workers; by server."""
        chunks = list(self.base.export())
        if not chunks:
            return None
        ids = torch.cat([chunk.ids for chunk in chunks])
        begun = torch.cat([chunk.values[:, :-1] for chunk in chunks])
        part = Part(self.remote, [ids])  # type: ignore[arg-type]
        delta = (self.leaf.pull(ids) - begun).div_(workers)
        ordered = torch.empty_like(delta)
        ordered[part.inverse[0]] = delta
        return Share(self.remote.number, part.keys, part.counts), ordered


class Geo(ParameterServers):
    """Local steps; differences travel now and then."""

    cannot_count = (
        "in mode geo workers update copies of their own and send sums of changes, so no server "
        "sees how often an id came, and a change would be added to a row that was dropped "
        "meanwhile; use strategy.ps.mode sync or async, or leave the section out"
    )

    def setup(self, model, optimizer, seed, clip_grad_norm=None) -> None:  # type: ignore[no-untyped-def]
        super().setup(model, optimizer, seed, clip_grad_norm)
        self.dense_optimizer = make_optimizer(optimizer, self.dense)
        self.copies = {
            name: Copy(store, self.row_optimizer, seed) for name, store in self.stores.items()
        }
        self.rows.fetch_taught = self._fetch
        self._begun = [p.detach().clone() for p in self.dense]
        self._batches = 0

    def prefetch(self, batch: Batch) -> None:
        """Nothing: most rows of a batch are here already."""

    def forward(self, batch: Batch) -> Output:
        lookups = self._lookups(batch)
        if lookups:
            trip = Trip(self.stores, lookups)
            self._fetch(trip)
            self.rows.use(trip)
        return self.compute(batch)

    def _fetch(self, trip: Trip) -> None:
        """Have this window's rows here, and the lookups answered from the copies."""
        missing = [self.copies[name].missing(part) for name, part in trip.parts.items()]
        if any(len(share.ids) for share in missing):
            pieces = self.client.start_pull(missing).wait()
            for name, share, rows in zip(trip.parts, missing, pieces):
                self.copies[name].take(share.ids, rows)
        for name, part in trip.parts.items():
            rows = self.copies[name].leaf.pull(part.keys.cpu())
            if part.distinct.padded:
                rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
            part.rows = rows.to(self.world.device)

    def step(self, lr: float) -> Tensor:
        if self.rows.staged is not None:
            self._unstaged |= self.rows.staged.parts.keys() - self.rows.found
        scale = 1.0 / self._count if self._count else 0.0
        for share, grads in self.rows.collect():
            name = self.spec.tables[share.table].name
            self.copies[name].leaf.push(share.ids, grads * scale, lr)
        if self.dense_optimizer is not None:
            for parameter in self.dense:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
            dense_step(self.dense_optimizer, lr)
        for store in self.stores.values():
            store.step += 1
        self._batches += 1
        if self._batches % self.section.geo_step == 0:
            self._meet()
        return self._loss * scale

    def _meet(self) -> None:
        """End the window: tell the servers what changed, and begin with what they have then."""
        sent = self.client.bytes_sent
        workers = self.world.size
        found = [pair for copy in self.copies.values() if (pair := copy.changes(workers))]
        dense = None
        if self.dense_at_servers:
            with torch.no_grad():
                deltas = [(p - b) / workers for p, b in zip(self.dense, self._begun)]
            dense = self._split(deltas)
        shares, deltas = [share for share, _ in found], [delta for _, delta in found]
        _, _, values = self.client.start_push(shares, deltas, 0.0, 0.0, 0.0, dense).wait()
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
        for copy in self.copies.values():
            copy.begin_window()
        self.world.bytes_sent += self.client.bytes_sent - sent

    def settle(self) -> None:
        self._meet()
        super().settle()
        self._begun = [p.detach().clone() for p in self.dense]

    def dense_state(self) -> dict[str, Tensor]:
        """Nothing: every worker's optimizer has a state of its own, which a resumed run forgets."""
        return {}

    def restore_dense(self, tensors: dict[str, Tensor]) -> None:
        super().restore_dense({})
        self._begun = [p.detach().clone() for p in self.dense]
        for copy in self.copies.values():
            copy.begin_window()


def _leaf(table: Table, optimizer: RowOptimizer, seed: int) -> Native | Reference:
    leaf: Store = make_local(table, optimizer, seed)
    assert isinstance(leaf, Native | Reference)
    return leaf
