"""ServedRows: tables whose rows are with the servers.

The lookups of a batch in all tables make one trip, and so do their gradients. No other worker is
needed for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.placements.trips import RoutedRows, TableTrip, Trip
from shoal.embedding.rows.placement import Placement, Sharding
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Collected, Gradients, Lookup, RowGradients, join_flat
from shoal.ps.worker.client import Client, Pulling, Pushing, ServerRequest


class RemoteTable:
    """One table at the servers, and how its rows are cut over them; servers save and load."""

    def __init__(self, table: Table, number: int, client: Client):
        assert client.spec is not None
        self.table, self.number = table, number
        growing_table = client.spec.tables[number].table()  # as a server keeps it: it grows
        self.sharding = Sharding(growing_table, Placement("row"), len(client.links))
        self.counted = client.spec.counted[number]
        self.step = 0  # how many steps its rows have had


@dataclass(frozen=True)
class Served(RowGradients):
    """Gradients of one table's distinct rows, grouped by server."""

    per_server: list[int] = field(default_factory=list)  # how many of the ids are whose

    def share(self, number: int) -> ServerRequest:
        """The gradients' ids as the client sends them."""
        assert isinstance(self.ids, Tensor)
        return ServerRequest(number, self.ids, self.per_server, self.counts)


class ServedTrip(Trip):
    """Lookups of one batch, in several tables, on their way to the servers."""

    def __init__(
        self,
        client: Client,
        tables: Mapping[str, RemoteTable],
        lookups: Sequence[Lookup],
        device: torch.device,
    ):
        for lookup in lookups:
            if isinstance(lookup.ids, Tensor):
                tables[lookup.table].table.check_ids(lookup.ids)
        super().__init__(tables, lookups, device)
        self.client, self.tables, self.device = client, tables, device
        self.step = -1  # the rows must have had so many steps; -1: any
        self._pulling: Pulling | None = None

    def start(self) -> None:
        """Ask for the rows, once."""
        if self._pulling is None:
            shares = [
                ServerRequest(self.tables[name].number, part.keys.cpu(), part.counts)
                for name, part in self.parts.items()
            ]
            self._pulling = self.client.start_pull(shares, self.step)

    def arrive(self) -> None:
        if self._pulling is not None:
            self._pulling.wait()  # requested rows must be received

    def fetch(self) -> None:
        """Have the rows here."""
        self.start()
        assert self._pulling is not None
        for part, rows in zip(self.parts.values(), self._pulling.wait()):
            part.take_rows(rows.to(self.device))


class ServedRows(RoutedRows[ServedTrip]):
    """Reads and updates the tables of one model at the servers."""

    def __init__(
        self,
        client: Client,
        tables: Sequence[Table],
        rules: Mapping[str, RowRules] | None = None,
        device: torch.device | str = "cpu",
        pipelined: bool = False,
    ):
        """pipelined: prefetched rows are requested at once, not after the step before them."""
        self.client, self.pipelined = client, pipelined
        self.remote = {t.name: RemoteTable(t, k, client) for k, t in enumerate(tables)}
        super().__init__(self.remote, rules, torch.device(device))

    def _trip(self, lookups: Sequence[Lookup]) -> ServedTrip:
        return ServedTrip(self.client, self.remote, lookups, self.device)

    def prefetch(self, batch: object, lookups: Sequence[Lookup]) -> None:
        super().prefetch(batch, lookups)
        if self.pipelined:
            self._ask_ahead()

    def _continue_prefetched(self) -> None:
        """Do nothing: prefetched rows are requested once this step's gradients are sent."""

    def _ask_ahead(self) -> None:
        """Ask for the rows of coming batches, as they are when what was pushed is applied."""
        for _, trip in self._prefetched:
            trip.step = self.client.pushes if trip.step < 0 else trip.step
            trip.start()

    def _stage(self, trip: ServedTrip) -> None:
        trip.step = self.client.pushes if trip.step < 0 else trip.step
        self._fetch(trip, learn=True)

    def collect(self, dense: Sequence[Tensor] = ()) -> Collected:
        """This worker's gradients; rows that none came to are left out."""
        by_table: dict[str, list[Served]] = {}
        for trip in self._end_step():
            for name, part in trip.parts.items():
                if part.grads is not None:
                    by_table.setdefault(name, []).append(_gradients_of(part))
        rows: Gradients = {name: self._joined(name, some) for name, some in by_table.items()}
        return Collected(join_flat(dense, self.device), rows)

    def _joined(self, name: str, pieces: list[Served]) -> Served:
        """The gradients of a table that several trips looked up, summed."""
        if len(pieces) == 1:
            return pieces[0]
        ids = torch.cat([one.ids for one in pieces if isinstance(one.ids, Tensor)])
        part = TableTrip(self.remote[name], [Lookup(name, ids)], ids.device)
        part.add(0, part.inverse[0], torch.cat([one.grads for one in pieces]))
        joined = _gradients_of(part)
        counts_by_piece = [one.counts for one in pieces if one.counts is not None]
        if counts_by_piece:
            counts = torch.zeros(len(part.keys), 2)
            counts.index_add_(0, part.inverse[0], torch.cat(counts_by_piece))
            joined = replace(joined, counts=counts)
        return joined

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        """One step of the servers' rows by gradients times `scale`; they have applied it."""
        scaled = {name: one.scaled(scale) for name, one in gradients.items()}
        self.submit(scaled, lr, loss=0.0, count=1.0).wait()

    def submit(
        self,
        gradients: Gradients,
        lr: float,
        loss: float,
        count: float,
        dense: list[Tensor] | None = None,
    ) -> Pushing:
        """Send the gradients of a summed loss of `count` terms, which servers apply as one step.

        dense: flat gradients of the dense parameters that each server holds. What is returned
        waits for the step.
        """
        pushing = self._send(gradients, lr, loss, count, dense)
        for table in self.remote.values():
            table.step += 1
        return pushing

    def _send(
        self,
        gradients: Gradients,
        lr: float,
        loss: float,
        count: float,
        dense: list[Tensor] | None,
    ) -> Pushing:
        """Send gradients, then ask for the rows of the next batch as they are after this step."""
        shares, grads = [], []
        for name, row_gradients in gradients.items():
            assert isinstance(row_gradients, Served)
            shares.append(row_gradients.share(self.remote[name].number))
            grads.append(row_gradients.grads)
        pushing = self.client.start_push(shares, grads, lr, loss, count, dense)
        if not self.pipelined:
            self._ask_ahead()
        return pushing


def _gradients_of(part: TableTrip) -> Served:
    """The rows that a gradient came to, their gradients [n, dim], and counts where it has any."""
    assert part.grads is not None
    grads, keys = part.grads[: len(part.keys)].cpu(), part.keys.cpu()
    counts = part.shown_counts().cpu() if part.placed.counted else None
    unused = part.unused()
    if unused is None:
        return Served(keys, grads, counts, part.counts)
    has_gradient = ~unused.cpu()
    per_server = [int(piece.sum()) for piece in has_gradient.split(part.counts)]
    return Served(
        keys[has_gradient],
        grads[has_gradient],
        None if counts is None else counts[has_gradient],
        per_server,
    )
