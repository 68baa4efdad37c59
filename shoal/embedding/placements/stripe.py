"""Stripe: the rows of a replicated table that one rank updates for all.

A softmax over a catalogue gives every row a gradient in every step. Ranks that each hold all rows
would each write these gradients, sum them over all and update all rows; instead each updates its
own rows, as if they were sharded, and fetches the rows of the others when these are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from shoal.distributed.world import World
from shoal.embedding.engines.device import Device
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.rows.placement import Placement, Sharding


class Stripe(Device):
    """Neighbouring rows of an engine as a separate engine, in the same memory."""

    def __init__(self, whole: Device, world: World):
        self.sharding = Sharding(whole.table, Placement("row", "range"), world.size)
        self.first, self.last = self.sharding.bounds[world.rank : world.rank + 2]
        table = replace(
            whole.table,
            rows=self.last - self.first,
            padding=whole.table.padding if self.first == 0 else None,
        )
        RowEngine.__init__(self, table, whole.optimizer, whole.seed)  # the memory is there already
        self.whole, self.device, self.fused = whole, whole.device, whole.fused
        self.values = whole.values[self.first : self.last]
        self.state = {key: part[self.first : self.last] for key, part in whole.state.items()}
        self.spare, self.marks = torch.empty(0), 0

    def pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Values and every piece of state: this stripe's rows, and all."""
        yield self.values, self.whole.values
        for key, part in self.state.items():
            yield part, self.whole.state[key]
