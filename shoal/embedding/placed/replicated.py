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


class ReplicatedRows(LocalRows):
    """Local rows whose gradients are those of all ranks."""

    def __init__(
        self, leaves: Mapping[str, Leaf], rules: Mapping[str, RowRules] | None, world: World
    ):
        super().__init__(leaves, rules, world.device)
        self.world = world

    def collect(self, scale: float = 1.0, notes: float = 0.0) -> Gradients:
        """Everybody's gradients, in order of rank: two collectives for all tables.

        Gradients of every row of a table (a softmax over the catalogue) are summed on the way
        instead, as those of dense parameters are.
        """
        result: Gradients = {}
        touched: dict[str, list[Tensor]] = {}  # ids, gradients, and counts where there are any
        # Those of other ranks are added to what a softmax would update by itself.
        for name, mine in self._take(write_all=self.world.size > 1).items():
            if isinstance(mine.ids, Every):
                result[name] = RowGradients(EVERY, self.world.all_reduce(mine.grads).mul_(scale))
                continue
            unique, summed = sum_duplicates(mine.ids, mine.grads)
            touched[name] = [unique, summed.mul_(scale)]
            if mine.counts is not None:
                touched[name].append(sum_duplicates(mine.ids.cpu(), mine.counts)[1])
        mine_all = [part.to(self.device) for parts in touched.values() for part in parts]
        columns = zip(*self.world.exchange(mine_all))  # a tensor of each rank, in order of rank
        for name, parts in touched.items():
            result[name] = RowGradients(*(torch.cat(next(columns)) for _ in parts))
        return result

    def saved(self) -> Iterator[tuple[str, Store]]:
        if self.world.is_main:
            yield from super().saved()
