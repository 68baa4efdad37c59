"""single: one process, rows in its own memory."""

from __future__ import annotations

from shoal.training.strategy.base import Strategy
from shoal.world.world import World


class Single(Strategy):
    """The reference that every other strategy must equal."""

    name = "single"

    def __init__(self, world: World | None = None, fused: bool = True):
        super().__init__(world)
        self.fused = fused
