"""LocalRows: every row in this process; what `single` reads, and the measure of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.engines.admission import tend
from shoal.embedding.engines.local import pull_all, push_all
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.service import (
    Gradients,
    Labels,
    Lookup,
    RowGradients,
    RowService,
    flat_grads,
)
from shoal.embedding.store import Every, Ids


@dataclass(frozen=True, eq=False)
class Pulled:
    """Rows of one lookup, whose gradient backward leaves on them."""

    ids: Ids  # flat
    rows: Tensor
    clicks: Tensor | None = None  # labels of the ids' samples, where they are known

    def gradients(self, counted: bool) -> RowGradients:
        """What backward left; where ids are counted, with how often each was shown and clicked."""
        grads, counts = flat_grads(self.rows), None
        if counted:
            shown = torch.ones(len(grads))
            clicks = torch.zeros_like(shown) if self.clicks is None else self.clicks
            counts = torch.stack([shown, clicks], 1)
        return RowGradients(self.ids, grads, counts)


class LocalRows(RowService):
    """Leaves of this process, read and updated directly."""

    def __init__(
        self,
        leaves: Mapping[str, RowEngine],
        rules: Mapping[str, RowRules] | None = None,
        device: torch.device | str = "cpu",
    ):
        super().__init__(leaves, rules, device)
        self.leaves = dict(leaves)
        self.looks_ahead = any(leaf.far for leaf in self.leaves.values())
        self._labels: Labels = {}
        self._pulled: dict[str, list[Pulled]] = {name: [] for name in self.leaves}
        self._pulls = 0  # since the last `collect`
        self._once = False  # whether the step before had one pull alone
        self._ahead = False  # whether the last pull was told to expect a push of its ids

    def announce(self, batch: object, lookups: Sequence[Lookup]) -> None:
        ids: dict[str, list[Tensor]] = {}
        for one in lookups:
            if not isinstance(one.flat, Every):
                ids.setdefault(one.table, []).append(one.flat)
        for name, parts in ids.items():
            self.leaves[name].announce(parts)

    def begin(
        self, batch: object, lookups: Sequence[Lookup], labels: Labels, lr: float = 0.0
    ) -> None:
        self.batch, self._labels = batch, labels

    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        leaves = [self.leaves[one.table] for one in lookups]
        result = []
        if learn:
            self._ahead = self._once and self._pulls == 0
            self._pulls += 1
        found = pull_all(leaves, [one.flat for one in lookups], learn and self._ahead)
        for lookup, rows in zip(lookups, found):
            if rows.device != self.device:
                rows = rows.to(self.device)
            if lookup.flat is not lookup.ids:
                rows = rows.view(*lookup.ids.shape, rows.shape[1])  # type: ignore[union-attr]
            if learn:
                rows.requires_grad_()
                clicks = None if lookup.field is None else self._labels.get(lookup.field)
                self._pulled[lookup.table].append(Pulled(lookup.flat, rows, clicks))
            result.append(rows)
        return result

    def leaf(self, name: str) -> RowEngine:
        return self.leaves[name]

    def collect(self, scale: float = 1.0, notes: float = 0.0) -> Gradients:
        self._write_late()
        gradients, self._labels = {}, {}
        self._once, self._pulls = self._pulls == 1, 0
        expected = self._once and self._ahead
        for name, leaf in self.leaves.items():
            own, count = self._take_own(name), len(self._pulled[name])
            pulled = self._take_pulled(name)
            joined = join(own + pulled, leaf.table.dim, name in self.counted)
            if expected and not own and len(pulled) == count:
                joined = replace(joined, pulled=True)
            gradients[name] = joined.scaled(scale)
        return gradients

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        push_all(
            [self.leaf(name) for name in gradients],
            [(one.ids, one.grads) for one in gradients.values()],
            lr,
            [one.counts for one in gradients.values()],
            [one.pulled for one in gradients.values()],
        )
        for name, rules in self.rules.items():
            tend(self.leaves[name], rules)
        for late in self._late:  # after the pushes, which count the steps
            late.step(lr, scale)
        self._late = []

    def _take_pulled(self, name: str) -> list[RowGradients]:
        """Gradients of this process's lookups since the last call, one by one."""
        pulled, self._pulled[name] = self._pulled[name], []
        counted = name in self.counted
        return [one.gradients(counted) for one in pulled if one.rows.grad is not None]

    def _has_gradients(self, name: str) -> bool:
        pulled = any(one.rows.grad is not None for one in self._pulled[name])
        return pulled or super()._has_gradients(name)


def join(parts: list[RowGradients], dim: int, counted: bool) -> RowGradients:
    """Gradients of one table's rows from several lookups, one after the other."""
    whole = [one for one in parts if isinstance(one.ids, Every)]
    if whole:  # the others are added to it, in place
        total = whole[0].grads
        for one in parts:
            if isinstance(one.ids, Every):
                total = total if one is whole[0] else total.add_(one.grads)
            else:
                total.index_add_(0, one.ids.to(total.device), one.grads)
        return whole[0]
    if not parts:
        counts = torch.empty(0, 2) if counted else None
        return RowGradients(torch.empty(0, dtype=torch.int64), torch.empty(0, dim), counts)
    if len(parts) == 1:
        return parts[0]
    ids = [one.ids for one in parts if not isinstance(one.ids, Every)]
    counts = torch.cat([one.counts for one in parts if one.counts is not None]) if counted else None
    return RowGradients(torch.cat(ids), torch.cat([one.grads for one in parts]), counts)
