"""Deferred: an update of rows that a softmax makes itself, after backward."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Deferred(Protocol):
    """Rows that are updated without their gradients ever being written."""

    tables: list[str]

    def gradients(self) -> list[Tensor]:
        """Compute the gradients of every row held here, a tensor per table."""

    def step(self, lr: float, scale: float) -> None:
        """Update the rows; gradients are to be multiplied by `scale`."""
