"""Recordable: engines whose updates may be part of a CUDA graph, which replays them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor


class Recordable(ABC):
    """What a strategy does for an engine before it replays a recorded step."""

    @property
    @abstractmethod
    def recordable(self) -> bool:
        """Whether a push of this engine may be recorded."""

    @classmethod
    @abstractmethod
    def begin_many(cls, engines: Sequence[Any], lr: float) -> None:
        """Count a step of engines of this class: their recorded push is replayed next."""

    @abstractmethod
    def stage(self, ids: Sequence[Tensor]) -> None:
        """Put the rows of all ids [n_k] of a recorded step where it reads them."""
