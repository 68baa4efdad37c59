"""Exchange: the sharded tables of a model, whose ids, rows and gradients travel together.

A training step makes three trips however many tables there are: ids to the owners, rows back,
gradients to the owners. The ids of a batch are explicit, so they are sent one batch ahead; rows are
read only after the update before them, so the numbers are those of one process. Where ids are
counted (see shoal.embedding.leaves.admission), how often each came travels with its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.embedding.placed.route import Labels, Part, Route, pack, unpack
from shoal.embedding.softmax.whole import is_every
from shoal.world.world import World

if TYPE_CHECKING:
    from shoal.embedding.placed.sharded import Sharded

Lookups = list[tuple[str, Tensor]]  # table, ids of any shape


class Exchange:
    """Reads and updates the tables of one model. Every call is made by all ranks."""

    def __init__(self, world: World, stores: Mapping[str, Sharded]):
        self.world, self.stores = world, dict(stores)
        self.staged: Route | None = None  # the rows of the batch in training
        self.found: set[str] = set()  # tables that lookups found staged rows of
        self.labels: Labels = []  # of the batch in training, where ids are counted
        self.counts: dict[str, Tensor] = {}  # counted tables: shows and clicks of collected keys
        self._ahead: list[tuple[object, Route]] = []  # announced batches, first come first
        self._pending: list[Route] = []
        self._own: list[tuple[str, Tensor, Tensor]] = []  # table, keys of the leaf, rows with grad

    # ---- ids and rows ---------------------------------------------------------------------------

    def announce(self, batch: object, lookups: Lookups) -> None:
        """Let the counts of a coming batch go; `advance` lets its ids go, `stage` has its rows."""
        self._ahead.append((batch, self._route(lookups)))

    def advance(self) -> None:
        """Let the ids of announced batches go."""
        for _, route in self._ahead:
            route.advance()

    def stage(self, batch: object, lookups: Lookups) -> None:
        """Have the rows of a batch here; lookups of its ids are then answered without a trip."""
        route = self._announced(batch) or self._route(lookups)
        route.fetch()
        self.staged = route
        self.found = set()
        self._add(route)

    def _add(self, route: Route) -> None:
        """Let `collect` have the gradients of a route's rows."""
        self._pending.append(route)
        if self.labels:
            for part in route.parts.values():
                part.labels = self.labels

    def _announced(self, batch: object) -> Route | None:
        """The route of a batch that was announced; those announced before it did not come."""
        if not any(known is batch for known, _ in self._ahead):
            return None
        while True:
            known, route = self._ahead.pop(0)
            if known is batch:
                return route
            route.finish()  # what travels must arrive all the same

    def pull(self, lookups: Lookups, learn: bool) -> list[Tensor]:
        """Rows of each lookup: its ids' shape + [dim]."""
        if learn and self.staged is not None:
            found = self._find_staged(self.staged, lookups)
            if found is not None:
                return found
        if not learn:  # nothing comes back, so replicas are read without telling anybody
            away = [pair for pair in lookups if not self.stores[pair[0]].layout.replicated]
            if len(away) < len(lookups):
                return self._pull_apart(lookups, away)
        route = self._route(lookups)
        route.fetch()
        if learn:
            self._add(route)
        return [
            route.parts[name].expand(route.parts[name].inverse[number], ids.shape, learn)
            for (name, number), (_, ids) in zip(route.order, lookups)
        ]

    def _pull_apart(self, lookups: Lookups, away: Lookups) -> list[Tensor]:
        fetched = iter(self.pull(away, learn=False) if away else [])
        rows = []
        for name, ids in lookups:
            store = self.stores[name]
            if store.layout.replicated:
                assert store.leaf is not None
                flat = store.leaf.pull(ids.reshape(-1)).to(self.world.device)
                rows.append(flat.view(*ids.shape, store.table.dim))
            else:
                rows.append(next(fetched))
        return rows

    def _find_staged(self, route: Route, lookups: Lookups) -> list[Tensor] | None:
        """Rows of lookups among those staged; None where some rank would miss one."""
        chosen: list[tuple[Part, Tensor]] = []
        surely, missing = True, False
        for name, ids in lookups:
            part = route.parts.get(name)
            if part is None:
                return None  # the same on every rank
            number = next((k for k, one in enumerate(part.requested) if one is ids), None)
            if number is not None:
                chosen.append((part, part.inverse[number]))
                continue
            inverse, lost = part.distinct.find(ids.reshape(-1))
            surely, missing = False, missing or lost
            chosen.append((part, inverse))
        if not surely:
            # Ids that a model made of the batch's ids: all ranks find them, or all go and ask.
            vote = torch.tensor([float(missing)], device=self.world.device)
            if float(self.world.all_reduce(vote)) > 0:
                return None
        self.found |= {name for name, _ in lookups}
        return [
            part.expand(inverse, ids.shape, learn=True)
            for (part, inverse), (_, ids) in zip(chosen, lookups)
        ]

    def _route(self, lookups: Lookups) -> Route:
        return Route(self.world, [(self.stores[name], ids) for name, ids in lookups])

    # ---- rows that never travel -----------------------------------------------------------------

    def own_rows(self, name: str, keys: Tensor, learn: bool) -> Tensor:
        """Rows of this rank's own leaf: [keys, dim]; their gradient stays here."""
        store = self.stores[name]
        if store.leaf is None:
            return torch.empty(0, store.table.dim, device=self.world.device)
        lend = getattr(store.leaf, "lend", None)
        if lend is not None and is_every(keys, store.layout.shares[self.world.rank]):
            rows = lend().detach()  # read at once, and not kept
        else:
            rows = store.leaf.pull(keys).to(self.world.device)
        if learn:
            rows.requires_grad_()
            self.add_own(name, keys, rows)
        return rows

    def add_own(self, name: str, keys: Tensor, rows: Tensor) -> None:
        """Let `collect` have the gradient of rows of this rank's own leaf, when they have one."""
        self._own.append((name, keys, rows))

    def has_gradients(self, name: str) -> bool:
        """Whether there are gradients of a table's rows that `collect` will find on this rank."""
        own = any(table == name and rows.grad is not None for table, _, rows in self._own)
        return own or any(name in route.parts for route in self._pending)

    # ---- gradients ------------------------------------------------------------------------------

    def num_unused(self) -> int:
        """Rows of this step that came but that no gradient goes back to."""
        some = [part.unused() for part in self._parts() if not part.store.counted]
        return sum(int(unused.sum()) for unused in some if unused is not None)

    def _parts(self) -> list[Part]:
        return [part for route in self._pending for part in route.parts.values()]

    def collect(self, scale: float, any_unused: bool) -> dict[str, tuple[Tensor, Tensor]]:
        """Send this step's gradients to their owners: table -> keys [m], gradients [m, columns].

        They come in order of rank, unsummed; `counts` then tells of counted tables how often each
        key was shown and clicked [m, 2]: never, where a row was looked up in vain. `any_unused`
        must be the same on every rank.
        """
        world, rank = self.world, self.world.rank
        parts = self._parts()
        counted = [part for part in parts if part.store.counted]
        for part in parts:
            if part.grads is None:
                part.grads = torch.zeros(part.num_rows, part.store.table.dim, device=world.device)
        gathered: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in self.stores}
        sent = self._send(parts, counted)
        for part, grads in zip(parts, sent):
            gathered[part.store.table.name].append((part.theirs, grads))
        self.counts = self._join_counts(counted, sent[len(parts) :])
        if any_unused and len(counted) < len(parts):
            self._drop_unused([part for part in parts if not part.store.counted], gathered)
        for name, keys, rows in self._own:
            if rows.grad is not None:
                gathered[name].append((keys, rows.grad))
        self.forget()
        result = {}
        for name, pairs in gathered.items():
            if len(pairs) == 1:
                keys, grads = pairs[0]
            elif pairs:
                keys, grads = torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])
            else:
                keys = torch.empty(0, dtype=torch.int64, device=world.device)
                grads = torch.empty(0, self.stores[name].layout.width(rank), device=world.device)
            result[name] = (keys, grads.mul_(scale) if scale != 1.0 else grads)
        return result

    def forget(self) -> None:
        """Drop what was staged and pulled since the last step."""
        self.staged, self.labels = None, []
        self._pending, self._own = [], []

    def send(self, name: str, ids: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of one table's ids to their owners: keys and gradients that came here."""
        route = self._route([(name, ids)])
        route.finish()
        route.parts[name].add(route.parts[name].inverse[0], grads)
        self._pending = [route]
        return self.collect(1.0, any_unused=False)[name]

    def _join_counts(self, counted: list[Part], sent: list[Tensor]) -> dict[str, Tensor]:
        """Table -> shows and clicks [m, 2] of the keys that came, in their order."""
        parts: dict[str, list[Tensor]] = {n: [] for n, s in self.stores.items() if s.counted}
        for part, seen in zip(counted, sent):
            parts[part.store.table.name].append(seen.cpu())
        return {name: torch.cat([torch.empty(0, 2), *some]) for name, some in parts.items()}

    def _send(self, parts: list[Part], counted: list[Part]) -> list[Tensor]:
        """Each part's gradients as they came: [theirs, columns held here]; then the counts."""
        world, size, rank = self.world, self.world.size, self.world.rank
        if not parts:
            return []
        if len(parts) == 1 and not parts[0].layout.everyone and not counted:
            part = parts[0]
            assert part.grads is not None
            return [world.all_to_all(part.grads[: len(part.keys)], part.counts, part.their_counts)]
        seen = [part.seen() for part in counted]
        outgoing = []
        for r in range(size):
            pieces = []
            for part in parts:
                first, last = part.layout.columns[r]
                pieces.append(part.grads[part.outgoing(r), first:last].reshape(-1))  # type: ignore[index]
            pieces += [c[part.outgoing(r)].reshape(-1) for c, part in zip(seen, counted)]
            outgoing.append(pieces)
        widths = [part.layout.width(rank) for part in parts] + [2] * len(counted)
        parts = parts + counted
        lengths = [[p.their_counts[r] * w for p, w in zip(parts, widths)] for r in range(size)]
        flat = world.all_to_all(
            pack(outgoing),
            [sum(len(piece) for piece in pieces) for pieces in outgoing],
            [sum(some) for some in lengths],
        )
        return [
            torch.cat(pieces).view(len(part.theirs), width)
            for part, width, pieces in zip(parts, widths, unpack(flat, lengths))
        ]

    def _drop_unused(
        self, parts: list[Part], gathered: dict[str, list[tuple[Tensor, Tensor]]]
    ) -> None:
        """A row that was looked up in vain must rest, so owners are told which had a gradient."""
        size, device = self.world.size, self.world.device
        used = []
        for part in parts:
            unused = part.unused()
            whole = torch.ones(len(part.keys), dtype=torch.uint8, device=device)
            used.append(whole if unused is None else (~unused).to(torch.uint8))
        outgoing = [[u[part.outgoing(r)] for u, part in zip(used, parts)] for r in range(size)]
        lengths = [[part.their_counts[r] for part in parts] for r in range(size)]
        flat = self.world.all_to_all(
            pack(outgoing),
            [sum(len(piece) for piece in pieces) for pieces in outgoing],
            [sum(some) for some in lengths],
        )
        numbers = {name: 0 for name in gathered}
        for part, pieces in zip(parts, unpack(flat, lengths)):
            name = part.store.table.name
            keep = torch.cat(pieces).bool()
            keys, grads = gathered[name][numbers[name]]
            gathered[name][numbers[name]] = (keys[keep], grads[keep])
            numbers[name] += 1
