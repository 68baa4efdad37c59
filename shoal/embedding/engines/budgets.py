"""Budgets: how many rows of each table a tier has room for.

Tables that fit into an even share of the budget have all their rows there; what they leave is
shared evenly by the others. A table that grows counts as larger than any budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shoal.config.sizes import show_size
from shoal.embedding.rows.table import Table
from shoal.optimizers.row_optimizer import RowOptimizer

INDEX_FIXED, INDEX_GROWING = 8, 24  # bytes of the index for a row that host memory may lack
SLOT = 16  # bytes for each row in host memory besides the row: its id and last use
INDEX_GPU, SLOT_GPU = 4, 13  # bytes of index and slot in GPU memory
FEWEST = 64  # rows in memory below which a tier makes no sense


@dataclass(frozen=True)
class BudgetShare:
    """A table's share of a budget."""

    bytes: int
    slots: int | None  # rows in memory; None: all of them


def value_bytes(table: Table) -> int:
    """Bytes of a row's values."""
    return -(-2 * table.dim // 4) * 4 if table.half else 4 * table.dim


def row_bytes(table: Table, optimizer: RowOptimizer) -> int:
    """Bytes of a row's values and its optimizer's state."""
    return value_bytes(table) + 4 * sum(optimizer.widths(table.dim).values())


def share_out(
    tables: Mapping[str, Table],
    optimizers: Mapping[str, RowOptimizer],
    budget: int | None,
    key: Literal["rows.tiers.host", "rows.tiers.gpu"] = "rows.tiers.host",
) -> dict[str, BudgetShare]:
    """The share of each table of so many bytes of host or GPU memory; None: it has all it needs."""
    sizes = {name: row_bytes(table, optimizers[name]) for name, table in tables.items()}
    if budget is None:
        return {name: BudgetShare(sizes[name] * (t.rows or 0), None) for name, t in tables.items()}
    remaining, shares = budget, {}
    of_row, of_slot = (INDEX_GPU, SLOT_GPU) if key == "rows.tiers.gpu" else (INDEX_FIXED, SLOT)
    by_size = sorted(tables, key=lambda n: sizes[n] * (tables[n].rows or 1 << 60))
    for done, name in enumerate(by_size):
        rows, share = tables[name].rows, remaining // (len(tables) - done)
        whole = None if rows is None else rows * sizes[name]
        if whole is not None and whole <= share:
            shares[name] = BudgetShare(whole, None)
        else:
            index = (rows or 0) * of_row
            slot_bytes = sizes[name] + of_slot + (INDEX_GROWING if rows is None else 0)
            slots = (share - index) // slot_bytes
            if slots < FEWEST:
                need = (index + FEWEST * slot_bytes) * (len(tables) - done) + budget - remaining
                raise ValueError(
                    f"{key}: given {show_size(budget)}, of which table {name!r} has "
                    f"{show_size(share)}; the index of its rows and the fewest that make sense in "
                    f"memory need {show_size(index + FEWEST * slot_bytes)}: give at least "
                    f"{show_size(need)}, fewer or smaller tables, or more processes (sharded)"
                )
            shares[name] = BudgetShare(share, slots)
        remaining -= shares[name].bytes
    return {name: shares[name] for name in tables}
