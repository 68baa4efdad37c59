"""Scopes: which strategy a module that is being built belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from shoal.embedding.table import Table


class Scope(Protocol):
    """A strategy as modules see it."""

    in_embedding_scope: bool

    @property
    def weighing(self) -> Callable[[Tensor], Tensor]:
        """Rows whose gradients count for what this process's samples count for."""

    def preview(self, table: Table, ids: Tensor) -> Tensor:
        """Rows before there are any, where a model is tried out."""

    def adopt(self, module: Any) -> None:
        """Take an embedding into the strategy."""


entered: list[Scope] = []  # the innermost last


def present_scope(what: str) -> Scope:
    """The strategy whose embedding_scope this is."""
    if not entered or not entered[-1].in_embedding_scope:
        raise RuntimeError(f"{what} must be built within `with strategy.embedding_scope():`")
    return entered[-1]
