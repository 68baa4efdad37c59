"""GeoRows: a worker's own copies of the rows that it updates, and what they changed by in a window.

A window is `geo_step` batches. The first time a window needs a row, it is fetched from the servers
and remembered as it came; from then on the row optimizer runs here. At the end of the window the
servers get what each row changed by, divided by the number of workers, and add it up; the next
window starts from the sum. So a row is never older than a window, and each row that a window
touched makes one trip there and one back.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.placements.trips import TableTrip
from shoal.embedding.rows.table import Init, Table
from shoal.embedding.service import Gradients, Lookup
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.ps.worker.client import Client, Pushing, ServerRequest
from shoal.ps.worker.remote import RemoteTable, Served, ServedRows, ServedTrip


class Copy:
    """This worker's own rows of one table, and how those of this window came."""

    def __init__(self, remote: RemoteTable, optimizer: RowOptimizer, seed: int):
        growing_table = remote.sharding.table
        self.remote = remote
        self.engine: RowEngine = make_local(growing_table, optimizer, seed)
        # A column more than the rows have: 1 where a row came in this window.
        self._came = Table(growing_table.name, growing_table.dim + 1, None, Init("constant", 0.0))
        self.begin()

    def begin(self) -> None:
        """Forget what came."""
        self.base: RowEngine = make_local(self._came, RowOptimizer("sgd"), 0)

    def missing(self, part: TableTrip) -> ServerRequest:
        """The rows of a lookup that this window has not fetched yet, grouped by server."""
        keys = part.keys.cpu()
        new = self.base.pull(keys)[:, -1] == 0
        counts = [int(piece.sum()) for piece in new.split(part.counts)]
        return ServerRequest(self.remote.number, keys[new], counts)

    def take(self, ids: Tensor, rows: Tensor) -> None:
        """Rows of this window as they came from the servers."""
        self.base.assign(ids, torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1))
        self.engine.assign(ids, rows)

    def changes(self, workers: int) -> Served | None:
        """The changes of this window's rows over the number of workers, by server."""
        chunks = list(self.base.export())
        if not chunks:
            return None
        ids = torch.cat([chunk.ids for chunk in chunks])
        initial = torch.cat([chunk.values[:, :-1] for chunk in chunks])
        part = TableTrip(self.remote, [Lookup(self.remote.table.name, ids)], ids.device)
        delta = (self.engine.pull(ids) - initial).div_(workers)
        ordered = torch.empty_like(delta)
        ordered[part.inverse[0]] = delta
        return Served(part.keys, ordered, None, part.counts)


class GeoRows(ServedRows):
    """Rows that are updated here; differences travel when a window ends."""

    def __init__(
        self,
        client: Client,
        tables: Mapping[str, Table],
        optimizers: Mapping[str, RowOptimizer],
        seed: int,
        device: torch.device,
    ):
        super().__init__(client, list(tables.values()), None, device)
        self.copies = {name: Copy(one, optimizers[name], seed) for name, one in self.remote.items()}

    def begin_window(self) -> None:
        """The next batches start from what the servers have."""
        for copy in self.copies.values():
            copy.begin()

    def submit_changes(self, workers: int, dense: list[Tensor] | None) -> Pushing:
        """Send the changes of this window's rows over the number of workers: servers add them up.

        dense: flat changes of the dense parameters that each server holds.
        """
        changes: Gradients = {}
        for name, copy in self.copies.items():
            table_changes = copy.changes(workers)
            if table_changes is not None:
                changes[name] = table_changes
        return self._send(changes, lr=0.0, loss=0.0, count=0.0, dense=dense)

    def _fetch(self, trip: ServedTrip, learn: bool) -> None:
        """Have this window's rows here, and the lookups answered from the copies."""
        if not learn:
            return super()._fetch(trip, learn)
        missing = [self.copies[name].missing(part) for name, part in trip.parts.items()]
        if any(len(share.ids) for share in missing):
            pieces = self.client.start_pull(missing).wait()
            for name, share, rows in zip(trip.parts, missing, pieces):
                self.copies[name].take(share.ids, rows)
        for name, part in trip.parts.items():
            part.take_rows(self.copies[name].engine.pull(part.keys.cpu()).to(self.device))

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        for name, row_gradients in gradients.items():
            self.copies[name].engine.push(row_gradients.ids, row_gradients.scaled(scale).grads, lr)
        for table in self.tables.values():
            table.step += 1
