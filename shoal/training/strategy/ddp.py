"""ddp: every rank holds all parameters; gradients are summed over ranks before the update.

Of tables only the rows that the batch touched travel: bytes on the wire grow with the batch, never
with the table. Every rank applies the same sums in the same order, so replicas stay equal bit for
bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from shoal.embedding.placed.duplicates import sum_duplicates
from shoal.embedding.softmax.whole import is_every
from shoal.embedding.store import Store
from shoal.training.strategy.base import Gradients
from shoal.training.strategy.collective import Collective
from shoal.world.world import World


class DDP(Collective):
    """Replicated rows, all-reduced dense gradients."""

    name = "ddp"

    def __init__(self, world: World | None = None, fused: bool = True):
        super().__init__(world)
        self.fused = fused and self.world.device.type == "cpu"  # a GPU's kernels never write them

    def exchange_rows(self, scale: float, notes: float) -> Gradients:
        """Everybody's row gradients, in order of rank: two collectives for all tables.

        Gradients of every row of a table (a softmax over the catalogue) are summed on the way
        instead, as those of dense parameters are.
        """
        result: Gradients = {}
        touched: Gradients = {}
        for module in self.embeddings:
            module.write_softmax(always=self.world.size > 1)  # those of other ranks are added
        for name, (ids, grads) in self.take_gradients().items():
            rows = self.stores[name].table.rows
            if rows is not None and is_every(ids, rows):
                result[name] = ids, self.world.all_reduce(grads).mul_(scale)
            else:
                unique, summed = sum_duplicates(ids, grads)
                touched[name] = unique, summed.mul_(scale)
                if name in self._counts:
                    self._counts[name] = sum_duplicates(ids.cpu(), self._counts[name])[1]
        device = self.world.device
        pairs = [tensor for pair in touched.values() for tensor in pair]
        everyone = self.world.exchange([*pairs, *(c.to(device) for c in self._counts.values())])
        for k, name in enumerate(touched):
            result[name] = (
                torch.cat([parts[2 * k] for parts in everyone]),
                torch.cat([parts[2 * k + 1] for parts in everyone]),
            )
        for k, name in enumerate(self._counts):
            self._counts[name] = torch.cat([parts[len(pairs) + k] for parts in everyone])
        return result

    def owned_rows(self) -> Iterator[tuple[str, Store]]:
        if self.world.is_main:
            yield from super().owned_rows()
