"""ShardedRows: tables spread over the ranks, whose ids, rows and gradients travel together.

A training step makes three trips however many tables there are: ids to the owners, rows back,
gradients to the owners. Ids are sent one batch ahead; rows are read only after the update before
them, so the numbers are those of one process. Where ids are counted (see
shoal.embedding.engines.admission), how often each came travels with its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.engines.admission import tend
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.placements.placement import Layout
from shoal.embedding.placements.route import Part, Route, exchange
from shoal.embedding.placements.routed import RoutedRows, T
from shoal.embedding.placements.sharded_table import ShardedTable
from shoal.embedding.service import Gradients, Lookup, RowGradients, sum_squares
from shoal.embedding.store import Every
from shoal.world.world import World


class SpreadRows(RoutedRows[T]):
    """Tables whose rows ranks hold between them. Every call is made by all ranks."""

    def __init__(
        self,
        world: World,
        tables: Mapping[str, ShardedTable],
        rules: Mapping[str, RowRules] | None = None,
    ):
        super().__init__(tables, rules, world.device)
        self.world, self.tables = world, dict(tables)

    def _everywhere(self, missing: bool) -> bool:
        vote = torch.tensor([float(missing)], device=self.device)
        return float(self.world.all_reduce(vote)) == 0

    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        if not learn:  # nothing comes back, so replicas are read without telling anybody
            away = [one for one in lookups if not self.tables[one.table].layout.replicated]
            if len(away) < len(lookups):
                return self._pull_apart(lookups, away)
        return super().pull(lookups, learn)

    def _pull_apart(self, lookups: Sequence[Lookup], away: Sequence[Lookup]) -> list[Tensor]:
        fetched = iter(self.pull(away, learn=False) if away else [])
        rows = []
        for lookup in lookups:
            table = self.tables[lookup.table]
            if table.layout.replicated:
                assert table.leaf is not None
                flat = table.leaf.pull(lookup.flat).to(self.device)
                shape = flat.shape[:1] if isinstance(lookup.ids, Every) else lookup.ids.shape
                rows.append(flat.view(*shape, flat.shape[1]))
            else:
                rows.append(next(fetched))
        return rows

    # ---- rows that never travel -----------------------------------------------------------------

    def spread(self, name: str) -> tuple[Layout, World] | None:
        layout = self.tables[name].layout
        return (layout, self.world) if layout.cut_by_rows else None

    def leaf(self, name: str) -> RowEngine | None:
        return self.tables[name].leaf if self.spread(name) is not None else None

    def own(self, name: str, learn: bool) -> Tensor | None:
        if self.spread(name) is None:
            return None
        rows = super().own(name, learn)
        if rows is None:  # this rank has none
            return torch.empty(0, self.tables[name].table.dim, device=self.device)
        return rows

    def _has_gradients(self, name: str) -> bool:
        on_their_way = any(name in trip.parts for trip in self._pending)
        return on_their_way or super()._has_gradients(name)


class ShardedRows(SpreadRows[Route]):
    """Leaves of all ranks, read and updated by their owners."""

    def _trip(self, lookups: Sequence[Lookup]) -> Route:
        return Route(self.world, self.tables, lookups)

    def note(self) -> float:
        """Rows of this step that came but that no gradient goes back to."""
        some = [part.unused() for part in self._parts(self._pending) if not part.placed.counted]
        return float(sum(int(unused.sum()) for unused in some if unused is not None))

    @staticmethod
    def _parts(trips: Sequence[Route]) -> list[Part]:
        return [part for trip in trips for part in trip.parts.values()]

    def collect(self, scale: float = 1.0, notes: float = 0.0) -> Gradients:
        """Send this step's gradients to their owners: of keys of their leaves, unsummed.

        They come in order of rank. Where ids are counted, a row that was looked up in vain was
        shown never; elsewhere owners are told which had a gradient (`notes`: whether any had none).
        """
        self._write_late()
        parts = self._parts(self._end_step())
        counted = [part for part in parts if part.placed.counted]
        for part in parts:
            if part.grads is None:
                part.grads = torch.zeros(part.num_rows, part.layout.table.dim, device=self.device)
        sent = self._send(parts, counted)
        gathered: dict[str, list[RowGradients]] = {name: [] for name in self.tables}
        seen = iter(sent[len(parts) :])
        used = self._used(parts) if notes > 0 and len(counted) < len(parts) else {}
        for number, (part, grads) in enumerate(zip(parts, sent)):
            one = RowGradients(
                part.theirs, grads, next(seen).cpu() if part.placed.counted else None
            )
            if number in used:
                one = replace(one, ids=part.theirs[used[number]], grads=grads[used[number]])
            gathered[part.layout.table.name].append(one)
        return {
            name: self._joined(name, some + self._take_own(name), scale)
            for name, some in gathered.items()
        }

    def _joined(self, name: str, some: list[RowGradients], scale: float) -> RowGradients:
        """One table's gradients from several trips, and of rows that were read where they lie."""
        table = self.tables[name]
        if len(some) == 1:
            joined = some[0]
        else:
            width = table.layout.width(self.world.rank)
            keys = [torch.empty(0, dtype=torch.int64), *(table.keys(one.ids) for one in some)]
            grads = [torch.empty(0, width, device=self.device), *(one.grads for one in some)]
            joined = RowGradients(
                torch.cat([one.to(self.device) for one in keys]), torch.cat(grads)
            )
        if table.counted:
            counts = [one.counts for one in some if one.counts is not None]
            joined = replace(joined, counts=torch.cat([torch.empty(0, 2), *counts]))
        return joined.scaled(scale)

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        for name, one in gradients.items():
            self.tables[name].push_own(one, lr)
        for name, rules in self.rules.items():
            tend(self.tables[name], rules, self.tables[name].layout.num_shares)
        for late in self._late:
            late.step(lr, scale)
        self._late = []

    def squares(self, gradients: Gradients) -> Tensor:
        whole = {n: self.tables[n].layout.replicated for n in gradients}
        apart = sum_squares([one.grads for n, one in gradients.items() if not whole[n]])
        alike = sum_squares([one.grads for n, one in gradients.items() if whole[n]])
        mine = apart.reshape(1).to(self.device)
        return self.world.all_reduce(mine).cpu().squeeze(0) + alike

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
        came = exchange(world, outgoing, lengths)
        return [
            torch.cat(one).view(len(p.theirs), width) for p, width, one in zip(parts, widths, came)
        ]

    def _used(self, parts: list[Part]) -> dict[int, Tensor]:
        """Which of the keys that came had a gradient [theirs], by the number of the part.

        A row that was looked up in vain must rest.
        """
        size = self.world.size
        numbers = [k for k, part in enumerate(parts) if not part.placed.counted]
        some = [parts[k] for k in numbers]
        used = []
        for part in some:
            unused = part.unused()
            whole = torch.ones(len(part.keys), dtype=torch.uint8, device=self.device)
            used.append(whole if unused is None else (~unused).to(torch.uint8))
        outgoing = [[u[part.outgoing(r)] for u, part in zip(used, some)] for r in range(size)]
        lengths = [[part.their_counts[r] for part in some] for r in range(size)]
        came = exchange(self.world, outgoing, lengths)
        return {k: torch.cat(one).bool() for k, one in zip(numbers, came)}
