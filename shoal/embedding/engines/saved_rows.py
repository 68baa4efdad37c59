"""SavedRows: an engine's rows as checkpoints hold them, and the checks of chunks that come back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from shoal.embedding.rows.admission import Admission
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Table
from shoal.optimizers.row_optimizer import RowOptimizer

COUNTERS = {"show": torch.float32, "click": torch.float32, "last_step": torch.int64}


class SavedRows(ABC):
    """Rows of one table that are exported and restored by id."""

    table: Table
    optimizer: RowOptimizer
    admission: Admission | None

    @abstractmethod
    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row held, in chunks of ascending id."""

    @abstractmethod
    def restore(self, rows: Rows) -> None:
        """Take over rows, values and state; a chunk that does not fit changes nothing."""

    def mark(self) -> int:
        """A point in time that `export` can take up from; 0: changes are not tracked."""
        return 0

    def check_mark(self, since: int, oldest: int, newest: int) -> None:
        """Refuse a mark that was never given, or is too old to know what came after."""
        if not max(oldest, 1) <= since <= newest:
            raise ValueError(
                f"table {self.table.name!r}: mark {since} is not known; marks {max(oldest, 1)} to "
                f"{newest} are: export all rows instead"
            )

    def state_shapes(self, n: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every piece of state, and of every counter, of a chunk of n rows."""
        return state_shapes_of(self.optimizer, self.table.dim, n, self.admission is not None)

    def fresh_state(self, n: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """State and counters of n rows that had no gradient yet."""
        begin = self.optimizer.initial_state()
        return {
            key: torch.full(shape, begin.get(key, 0.0), dtype=dtype, device=device)
            for key, (shape, dtype) in self.state_shapes(n).items()
        }

    def check_rows(self, rows: Rows) -> None:
        """Refuse a chunk that does not fit, before anything is changed."""
        n = rows.ids.numel()
        expected = self.state_shapes(n)
        if rows.state.keys() != expected.keys():
            raise ValueError(self._other_state(sorted(rows.state), sorted(expected)))
        parts = {key: (rows.state[key], *known) for key, known in expected.items()}
        values = rows.values, (n, self.table.dim), torch.float32
        self.check_chunk("a chunk's", rows.ids, {"values": values, **parts})
        self.table.check_ids(rows.ids)

    def check_chunk(self, owner: str, ids: Tensor, parts: dict[str, Any]) -> None:
        """Refuse ids that do not ascend, and parts of another shape or dtype than expected."""
        name, n = self.table.name, ids.numel()
        for key, (part, shape, dtype) in {"ids": (ids, (n,), torch.int64), **parts}.items():
            if part.dtype != dtype or part.shape != shape:
                raise ValueError(
                    f"table {name!r}: {owner} {key} is {part.dtype} {list(part.shape)}; for "
                    f"{n} ids it must be {dtype} {list(shape)}"
                )
        if n > 1 and not bool((ids[1:] > ids[:-1]).all()):
            raise ValueError(f"table {name!r}: {owner} ids must ascend, each id once")

    def real_rows(self, rows: Rows) -> Rows:
        """A chunk without the padding id, which always reads as zeros."""
        padding = self.table.padding
        return rows if padding is None else rows.select(rows.ids != padding)

    def _other_state(self, saved_names: list[str], expected_names: list[str]) -> str:
        """The error message for a chunk whose state is not the optimizer's."""
        holds = f"the state {', '.join(saved_names)}" if saved_names else "no state"
        keeps = (
            f"{self.optimizer.name} keeps {', '.join(expected_names)}"
            if expected_names
            else "none is kept here"
        )
        message = f"table {self.table.name!r}: saved rows hold {holds}, and {keeps}: "
        if not saved_names and self.optimizer.state_names():
            return message + (
                "they come from servers in mode geo, which keep no state, or from another "
                "optimizer; go on with strategy.ps.mode=geo, or with the optimizer that wrote them"
            )
        if not expected_names:
            message += "servers in mode geo keep no state, and neither does sgd; "
        return message + "go on with the optimizer, and on servers the mode, that wrote them"


def state_shapes_of(
    optimizer: RowOptimizer, dim: int, n: int, counted: bool
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of what is kept of n rows besides their values [n, dim]."""
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        key: ((n, dim) if kind == "dim" else (n,), torch.float32)
        for key, kind in optimizer.state_names().items()
    }
    if counted:
        shapes |= {key: ((n,), dtype) for key, dtype in COUNTERS.items()}
    return shapes
