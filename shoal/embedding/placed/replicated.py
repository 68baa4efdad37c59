"""ReplicatedRows: every rank holds every row. Of tables only what a batch touched travels.

Bytes on the wire grow with the batch, never with the table. Every rank applies the same sums in the
same order, so replicas stay equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.leaves.leaf import Leaf
from shoal.embedding.placed.duplicates import sum_duplicates
from shoal.embedding.placed.local import LocalRows
from shoal.embedding.service import Gradients, RowGradients
from shoal.embedding.store import EVERY, Every, Store
from shoal.world.world import World

SMALL = 1 << 20  # bytes of all ranks that may travel with the rows, to be added up by each


class ReplicatedRows(LocalRows):
    """Local rows whose gradients are those of all ranks."""

    def __init__(
        self, leaves: Mapping[str, Leaf], rules: Mapping[str, RowRules] | None, world: World
    ):
        super().__init__(leaves, rules, world.device)
        self.world = world

    def collect(self, scale: float = 1.0, notes: float = 0.0) -> Gradients:
        _, gradients = self.collect_with(torch.empty(0, device=self.device))
        return {name: one.scaled(scale) for name, one in gradients.items()}

    def collect_with(self, flat: Tensor) -> tuple[Tensor, Gradients]:
        """The sum of everybody's `flat`, and everybody's gradients, in order of rank.

        All of it is one trip where `flat` is small. Gradients of every row of a table (a softmax
        over the catalogue) are summed on the way, as a larger `flat` is.
        """
        together = flat.nbytes * self.world.size <= SMALL
        if not together:
            flat = self.world.all_reduce(flat)
        result: Gradients = {}
        touched: dict[str, list[Tensor]] = {}  # ids, gradients, and counts where there are any
        # Those of other ranks are added to what a softmax would update by itself.
        for name, mine in self._take(write_all=self.world.size > 1).items():
            if isinstance(mine.ids, Every):
                result[name] = RowGradients(EVERY, self.world.all_reduce(mine.grads))
                continue
            unique, summed = sum_duplicates(mine.ids, mine.grads, self.leaves[name].table.rows)
            touched[name] = [unique, summed]
            if mine.counts is not None:
                touched[name].append(sum_duplicates(mine.ids.cpu(), mine.counts)[1])
        mine_all = [part.to(self.device) for parts in touched.values() for part in parts]
        if together:
            mine_all.insert(0, flat)
        joined = iter(self.world.gather(mine_all)[0])
        if together:
            first, *others = next(joined).view(self.world.size, -1).unbind()
            flat = sum(others, first)
        for name, parts in touched.items():
            result[name] = RowGradients(*(next(joined) for _ in parts))
        return flat, result

    def saved(self) -> Iterator[tuple[str, Store]]:
        if self.world.is_main:
            yield from super().saved()
