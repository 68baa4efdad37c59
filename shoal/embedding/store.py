"""Store: where rows live. Every placement (local, replicated, sharded, served, tiered) is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from shoal.embedding.table import Table


@dataclass(frozen=True)
class Rows:
    """A chunk of rows as checkpoints hold them: keyed by id, in ascending order of id."""

    ids: Tensor  # [n] int64
    values: Tensor  # [n, dim] float32
    state: dict[str, Tensor] = field(default_factory=dict)  # optimizer state, each [n] or [n, dim]


class Store(Protocol):
    """One table's rows. Ids may repeat in every call; any int64 tensor shape is flat: [n]."""

    table: Table

    def pull(self, ids: Tensor) -> Tensor:
        """Rows of `ids`: [n, dim] float32, a fresh tensor without gradient history."""

    def push(self, ids: Tensor, grads: Tensor, lr: float) -> None:
        """One optimizer step. Gradients of the same row are summed first; others rest.

        ids [n], grads [n, dim]. Called once per training step on every rank, possibly with n = 0,
        because the count of calls is the step number that Adam's bias correction needs.
        """

    def prefetch(self, ids: Tensor) -> None:
        """A hint that `ids` will be pulled soon; may do nothing."""

    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row this process owns, in chunks, ascending ids over all chunks."""

    def restore(self, rows: Rows) -> None:
        """Take over the given rows, values and state; rows not named stay as they are."""

    @property
    def step(self) -> int:
        """How many times `push` was called; set on restore."""

    @step.setter
    def step(self, value: int) -> None: ...
