"""Remote: tables whose rows are with the servers, as a model reads and updates them.

`RemoteRows` is to parameter servers what an Exchange is to ranks: the lookups of a batch in all
tables make one trip, and so do their gradients. It needs no other worker for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from shoal.embedding.placed.exchange import Lookups
from shoal.embedding.placed.placement import Layout, Placement
from shoal.embedding.placed.route import Labels, Part
from shoal.embedding.store import Rows
from shoal.embedding.table import Table
from shoal.ps.worker.client import Client, Pulling, Share

Gradients = list[tuple[Share, Tensor]]


class Remote:
    """One table's rows, at the servers. A Store; models come by RemoteRows instead."""

    def __init__(self, table: Table, number: int, client: Client):
        assert client.spec is not None
        self.table, self.number, self.client = table, number, client
        kept = client.spec.tables[number].table()  # as a server keeps it: it grows
        self.layout = Layout(kept, Placement("row"), len(client.links))
        self._alone = RemoteRows(client, {table.name: self})
        self._step = 0

    def check(self, ids: Tensor) -> None:
        """Refuse ids that a fixed table has no row for."""
        if self.table.rows is None or ids.numel() == 0:
            return
        for bound in ids.aminmax():
            if not 0 <= int(bound) < self.table.rows:
                raise ValueError(
                    f"table {self.table.name!r} has no row {int(bound)}: it has {self.table.rows} "
                    f"rows, ids 0 to {self.table.rows - 1}; give the table more rows, or rows=None "
                    "so that it grows"
                )

    def pull(self, ids: Tensor) -> Tensor:
        """Rows of `ids` [n]: [n, dim]."""
        return self._alone.pull([(self.table.name, ids.reshape(-1))], learn=False)[0].clone()

    def push(self, ids: Tensor, grads: Tensor, lr: float) -> None:
        """One optimizer step of this table alone, by itself a whole step of the servers."""
        self.check(ids)
        part = Part(self, [ids.reshape(-1)])  # type: ignore[arg-type]
        part.add(part.inverse[0], grads)
        shares = [_gradients_of(part)]
        pushing = self.client.start_push([s for s, _ in shares], [g for _, g in shares], lr, 0, 1)
        pushing.wait()
        self._step += 1

    def prefetch(self, ids: Tensor) -> None:
        """Nothing: a batch is announced to RemoteRows, all its tables at once."""

    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Nothing: servers write their rows themselves."""
        yield from ()

    def restore(self, rows: Rows) -> None:
        raise ValueError("rows at servers are loaded by the servers: Client.load")

    @property
    def step(self) -> int:
        """How many times rows were updated."""
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        self._step = value


class Trip:
    """Lookups of one batch, in several tables."""

    def __init__(self, stores: dict[str, Remote], lookups: Lookups):
        grouped: dict[str, list[Tensor]] = {}
        self.order: list[tuple[str, int]] = []
        for name, ids in lookups:
            requested = grouped.setdefault(name, [])
            self.order.append((name, len(requested)))
            requested.append(ids)
        for name, requested in grouped.items():
            for ids in requested:
                stores[name].check(ids)
        self.parts = {name: Part(stores[name], ids) for name, ids in grouped.items()}  # type: ignore[arg-type]
        self.pulling: Pulling | None = None
        self.labels: Labels = []

    def shares(self) -> list[Share]:
        return [_share(part) for part in self.parts.values()]

    def start(self, client: Client, step: int) -> None:
        """Ask for the rows, once."""
        if self.pulling is None:
            self.pulling = client.start_pull(self.shares(), step)

    def finish(self, device: torch.device) -> None:
        """Have the rows here."""
        assert self.pulling is not None
        for part, rows in zip(self.parts.values(), self.pulling.wait()):
            if part.distinct.padded:
                rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
            part.rows = rows.to(device)


class RemoteRows:
    """Reads and updates the tables of one model at the servers."""

    def __init__(
        self, client: Client, stores: dict[str, Remote], device: torch.device | str = "cpu"
    ):
        self.client, self.stores, self.device = client, stores, torch.device(device)
        self.staged: Trip | None = None
        self.found: set[str] = set()  # tables that lookups found staged rows of
        self._ahead: list[tuple[object, Trip]] = []
        self._pending: list[Trip] = []
        self.fetch_taught: Callable[[Trip], None] = self._fetch  # geo has copies of its own

    def _fetch(self, trip: Trip) -> None:
        trip.start(self.client, -1)
        trip.finish(self.device)

    def announce(self, batch: object, lookups: Lookups) -> Trip:
        """Work out which rows a coming batch needs; whoever announced it lets the request go."""
        trip = Trip(self.stores, lookups)
        self._ahead.append((batch, trip))
        return trip

    def start_announced(self, step: int) -> None:
        """Let the requests of announced batches go."""
        for _, trip in self._ahead:
            trip.start(self.client, step)

    def stage(self, batch: object, lookups: Lookups, step: int) -> None:
        """Have the rows of a batch here; lookups of its ids are then answered without a trip."""
        trip = self._announced(batch) or Trip(self.stores, lookups)
        trip.start(self.client, step)
        trip.finish(self.device)
        self.use(trip)

    def use(self, trip: Trip) -> None:
        """Answer the lookups of the step under way from a trip whose rows are here."""
        self.staged, self.found = trip, set()
        self._pending.append(trip)

    def _announced(self, batch: object) -> Trip | None:
        if not any(known is batch for known, _ in self._ahead):
            return None
        while True:
            known, trip = self._ahead.pop(0)
            if known is batch:
                return trip
            if trip.pulling is not None:
                trip.pulling.wait()  # what was asked for must be taken

    def pull(self, lookups: Lookups, learn: bool) -> list[Tensor]:
        """Rows of each lookup: its ids' shape + [dim]."""
        if learn and self.staged is not None:
            found = self._find_staged(self.staged, lookups)
            if found is not None:
                return found
        trip = Trip(self.stores, lookups)
        if learn:
            self.fetch_taught(trip)
            self._pending.append(trip)
        else:
            self._fetch(trip)
        return [
            trip.parts[name].expand(trip.parts[name].inverse[number], ids.shape, learn)
            for (name, number), (_, ids) in zip(trip.order, lookups)
        ]

    def _find_staged(self, trip: Trip, lookups: Lookups) -> list[Tensor] | None:
        chosen = []
        for name, ids in lookups:
            part = trip.parts.get(name)
            if part is None:
                return None
            number = next((k for k, one in enumerate(part.requested) if one is ids), None)
            if number is not None:
                chosen.append((part, part.inverse[number]))
                continue
            inverse, missing = part.distinct.find(ids.reshape(-1))
            if missing:
                return None
            chosen.append((part, inverse))
        self.found |= {name for name, _ in lookups}
        return [
            part.expand(inverse, ids.shape, learn=True)
            for (part, inverse), (_, ids) in zip(chosen, lookups)
        ]

    def collect(self) -> Gradients:
        """This step's gradients, a share per table; rows that none came to are left out."""
        assert self.client.spec is not None
        counted = self.client.spec.counted
        by_table: dict[str, Gradients] = {}
        for trip in self._pending:
            for name, part in trip.parts.items():
                if part.grads is not None:
                    labels = trip.labels if counted[self.stores[name].number] else None
                    by_table.setdefault(name, []).append(_gradients_of(part, labels))
        self.staged, self._pending = None, []
        result = []
        for name, gradients in by_table.items():
            if len(gradients) > 1:  # looked up in several trips: sum them as one
                store = self.stores[name]
                ids = torch.cat([share.ids for share, _ in gradients])
                joined = Part(store, [ids])  # type: ignore[arg-type]
                joined.add(joined.inverse[0], torch.cat([grads for _, grads in gradients]))
                share, grads = _gradients_of(joined)
                seen = [one.seen for one, _ in gradients if one.seen is not None]
                if seen:
                    counts = torch.zeros(len(share.ids), 2)
                    counts.index_add_(0, joined.inverse[0], torch.cat(seen))
                    share = replace(share, seen=counts)
                gradients = [(share, grads)]
            result.append(gradients[0])
        return result


def _share(part: Part) -> Share:
    return Share(part.store.number, part.keys.cpu(), part.counts)  # type: ignore[attr-defined]


def _gradients_of(part: Part, labels: Labels | None = None) -> tuple[Share, Tensor]:
    """The rows that a gradient came to, and their gradients [n, dim]; labels: and their counts."""
    assert part.grads is not None
    grads = part.grads[: len(part.keys)].cpu()
    share, unused = _share(part), part.unused()
    if labels is not None:
        part.labels = labels
        share = replace(share, seen=part.seen().cpu())
    if unused is None:
        return share, grads
    kept = ~unused.cpu()
    counts = [int(piece.sum()) for piece in kept.split(part.counts)]
    seen = None if share.seen is None else share.seen[kept]
    return Share(share.table, share.ids[kept], counts, seen), grads[kept]
