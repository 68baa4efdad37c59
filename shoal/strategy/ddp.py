"""ddp: every rank holds all parameters; gradients are summed over ranks before the update.

Of tables only the rows that the batch touched travel: bytes on the wire grow with the batch, never
with the table. Every rank applies the same sums in the same order, so replicas stay equal bit for
bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.embedding.duplicates import sum_duplicates
from shoal.embedding.store import Store
from shoal.strategy.base import Gradients
from shoal.strategy.collective import Collective


class DDP(Collective):
    """Replicated rows, all-reduced dense gradients."""

    name = "ddp"

    def exchange_rows(self, scale: float, notes: float) -> Gradients:
        """Everybody's row gradients, in order of rank: two collectives for all tables."""
        gradients = self.take_gradients()
        mine: list[Tensor] = []
        for ids, grads in gradients.values():
            unique, summed = sum_duplicates(ids, grads)
            mine += [unique, summed.mul_(scale)]
        everyone = self.world.exchange(mine)
        return {
            name: (
                torch.cat([parts[2 * k] for parts in everyone]),
                torch.cat([parts[2 * k + 1] for parts in everyone]),
            )
            for k, name in enumerate(gradients)
        }

    def owned_rows(self) -> Iterator[tuple[str, Store]]:
        if self.world.is_main:
            yield from super().owned_rows()
