"""Curves: losses and metrics of each epoch, for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Curves:
    """A folder of TensorBoard's. Its library comes in with the first epoch that has ended."""

    def __init__(self, folder: Path, first: int | None):
        """first: what an earlier part of the run wrote from this epoch on is not shown."""
        self._folder, self._first = folder, first
        self._writer: Any = None

    def add(self, epoch: int, line: dict[str, Any]) -> None:
        """One line of metrics.jsonl."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=self._first)
        self._writer.add_scalar("loss/train", line["loss"], epoch)
        for name, value in line.get("valid", {}).items():
            self._writer.add_scalar(f"valid/{name}", value, epoch)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
