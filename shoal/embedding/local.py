"""Local: rows in this process. Chooses the engine that holds them."""

from __future__ import annotations

from typing import Literal

from shoal.embedding.optim import RowOptimizer
from shoal.embedding.reference import Reference
from shoal.embedding.store import Store
from shoal.embedding.table import Table

BACKENDS = ("auto", "native", "reference")


def make_local(
    table: Table,
    optimizer: RowOptimizer,
    seed: int,
    *,
    backend: Literal["auto", "native", "reference"] = "auto",
    threads: int | None = None,
) -> Store:
    """A store that holds the table's rows here; `threads=None` means torch's number of threads."""
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is not known; known are {', '.join(BACKENDS)}")
    return Reference(table, optimizer, seed)
