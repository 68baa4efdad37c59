"""single: one process, rows in its own memory."""

from __future__ import annotations

from shoal.strategy.base import Strategy


class Single(Strategy):
    """The reference that every other strategy must equal."""

    name = "single"
