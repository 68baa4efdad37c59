"""Table plan: which rank holds which part of each table, and what that costs.

Small tables are replicated (reading them needs no trip). The others go whole to one rank each where
that comes out even, which keeps their lookups in one piece; else all of them are cut by rows.
A config may decide for all tables, or for one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from shoal.config.errors import did_you_mean
from shoal.config.schema import StrategySection
from shoal.embedding.engines.budgets import row_bytes as row_bytes_of
from shoal.embedding.placements.step_bytes import StepBytes, step_bytes
from shoal.embedding.rows.placement import Placement, Sharding
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Lookup
from shoal.optimizers.row_optimizer import RowOptimizer

MIB = 1 << 20


@dataclass(frozen=True)
class TablePlan:
    """A sharding for every table, and the figures that the log shows."""

    shardings: dict[str, Sharding]
    row_bytes: dict[str, int]  # a row and its optimizer state
    lookups: dict[str, int]  # fields that read the table
    itemsize: int = 4  # bytes of a value that travels

    def step_bytes(
        self, lookups: Sequence[Sequence[Lookup]], counted: Collection[str] = ()
    ) -> list[StepBytes]:
        """Bytes each rank sends in a step for lookups[rank]; counted: tables that count ids."""
        return step_bytes(self.shardings, lookups, self.itemsize, counted)

    def bytes_on(self, rank: int) -> int:
        """Bytes of rows and state that a rank holds; growing tables count nothing."""
        return sum(self._bytes(name, rank) for name in self.shardings)

    def _bytes(self, name: str, rank: int) -> int:
        sharding = self.shardings[name]
        share = sharding.width(rank) / sharding.table.dim
        return int(sharding.shares[rank] * share * self.row_bytes[name])

    def lookups_on(self, name: str, rank: int) -> float:
        """Lookups that a rank serves, of those that one sample makes on average."""
        sharding, num_lookups = self.shardings[name], self.lookups[name]
        if sharding.replicated:
            return num_lookups / sharding.size
        if sharding.placement.place == "table":
            return float(num_lookups) if rank == sharding.placement.rank else 0.0
        if sharding.placement.place == "column":
            return num_lookups * sharding.width(rank) / sharding.table.dim
        if sharding.grows:
            return num_lookups / sharding.size
        return num_lookups * sharding.shares[rank] / (sharding.table.rows or 1)

    def __str__(self) -> str:
        lines = [("table", "rows", "dim", "place", "bytes per rank", "lookups per rank")]
        size = next(iter(self.shardings.values())).size if self.shardings else 1
        for name, sharding in self.shardings.items():
            placement = sharding.placement
            place = {
                "row": f"row by {placement.by}",
                "table": f"table on rank {placement.rank}",
            }.get(placement.place, placement.place)
            served = [self.lookups_on(name, rank) for rank in range(size)]
            held_bytes = [self._bytes(name, rank) for rank in range(size)]
            rows = "grows" if sharding.grows else f"{sharding.table.rows:,}"
            dim = str(sharding.table.dim)
            lines.append((name, rows, dim, place, _span(held_bytes, _size), _span(served, _number)))
        held_bytes = [self.bytes_on(rank) for rank in range(size)]
        served = [
            sum(self.lookups_on(name, rank) for name in self.shardings) for rank in range(size)
        ]
        lines.append(("all", "", "", "", _span(held_bytes, _size), _span(served, _number)))
        lines.append(("imbalance", "", "", "", _imbalance(held_bytes), _imbalance(served)))
        return in_columns(lines, left=(0, 3))


def plan_tables(
    tables: Mapping[str, Table],
    size: int,
    section: StrategySection,
    optimizers: Mapping[str, RowOptimizer],
    lookups: Mapping[str, int] | None = None,
) -> TablePlan:
    """Choose a placement for every table: from its size, or as the config sets it.

    size: the number of ranks; each of the section's groups spreads the tables over its ranks.
    """
    if size % section.groups:
        raise ValueError(
            f"strategy.groups: given {section.groups}, and {size} processes are not so many equal "
            f"groups: choose a number that divides {size}"
        )
    size //= section.groups
    # 1. Refuse settings of tables that the model does not have.
    unknown = [name for name in section.tables if name not in tables]
    if unknown:
        raise ValueError(
            f"strategy.tables names {unknown[0]!r}; the model has tables: {', '.join(tables)}"
            f"{did_you_mean(unknown[0], tables)}"
        )
    row_bytes = {name: row_bytes_of(table, optimizers[name]) for name, table in tables.items()}
    total = {name: (table.rows or 0) * row_bytes[name] for name, table in tables.items()}
    # 2. Place each table by the config or by its size; `free` ones may still stay whole.
    chosen: dict[str, Placement] = {}
    free: list[str] = []
    for name, table in tables.items():
        overrides = section.tables.get(name, {})
        place, by = overrides.get("place", "auto"), overrides.get("by", section.row_by)
        place = section.place if place == "auto" else place
        if place == "auto" and table.rows is None:
            place = "row"
        if place == "auto" and total[name] <= section.replicate_below:
            place = "replicate"
        if place == "auto":
            free.append(name)
            chosen[name] = Placement("row", by)
        elif place == "table":
            chosen[name] = Placement("table", by, overrides.get("rank", -1))
        else:
            chosen[name] = Placement(place, by)
    # 3. Give whole tables a rank, then cut all tables.
    _share_out(chosen, total, size, free)
    shardings = {name: Sharding(table, chosen[name], size) for name, table in tables.items()}
    read = {name: (lookups or {}).get(name, 1) for name in tables}
    plan = TablePlan(shardings, row_bytes, read, 4 if section.wire_dtype == "float32" else 2)
    # 4. Refuse a plan that needs more memory than the config allows.
    fullest = max((plan.bytes_on(rank) for rank in range(size)), default=0)
    if section.memory is not None and fullest > section.memory:
        raise ValueError(
            f"the tables need {_size(fullest)} on the fullest rank, and strategy.memory allows "
            f"{_size(section.memory)}; use more processes, a smaller embedding, or "
            f"raise strategy.memory. The plan was:\n{plan}"
        )
    return plan


def _share_out(
    chosen: dict[str, Placement], total: Mapping[str, int], size: int, free: Sequence[str]
) -> None:
    """Give each whole table a rank, the largest first, to the emptiest rank; in place."""
    load = [0] * size
    ranks: dict[str, int] = {}
    for name, placement in chosen.items():
        if placement.place == "table" and placement.rank >= 0:
            load[placement.rank % size] += total[name]
    unplaced = [n for n, one in chosen.items() if one.place == "table" and one.rank < 0]
    for names in (unplaced, free):
        for name in sorted(names, key=lambda n: -total[n]):
            ranks[name] = load.index(min(load))
            load[ranks[name]] += total[name]
    # Tables without a fixed place stay whole if they spread evenly: the fullest rank is then
    # within a tenth of the mean.
    even = len(free) >= 2 * size and size > 1 and max(load) <= 1.1 * sum(load) / size
    for name in [*unplaced, *(free if even else ())]:
        chosen[name] = Placement("table", chosen[name].by, ranks[name])


def in_columns(lines: Sequence[tuple[str, ...]], left: Collection[int]) -> str:
    """Lines of cells as aligned text; the columns numbered `left` are left-aligned."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if k in left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def _size(count: float) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def _number(value: float) -> str:
    return f"{value:.2f}"


def _span(values: Sequence[float], show: Callable[[float], str]) -> str:
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def _imbalance(values: Sequence[float]) -> str:
    """The value of the fullest rank over the mean."""
    mean = sum(values) / len(values)
    return f"{max(values) / mean:.2f}" if mean else "1.00"
