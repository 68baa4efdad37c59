"""The planner: which table goes where, and what its table of figures says."""

from __future__ import annotations

import pytest

from shoal.config.schema import StrategySection
from shoal.embedding.placements.table_plan import plan_tables
from shoal.embedding.rows.table import Table
from shoal.optimizers.row_optimizer import RowOptimizer

ADAM = RowOptimizer("adam")  # a value has two floats of state: 12 bytes
BIG = Table("big", 64, 1_000_000)
SMALL = Table("small", 8, 100)


def plan(given: list[Table], size: int = 4, optimizer: RowOptimizer = ADAM, **section):  # type: ignore[no-untyped-def]
    return plan_tables(
        {t.name: t for t in given},
        size,
        StrategySection(**section),
        {one.name: optimizer for one in given},
    )


def test_small_tables_are_replicated_and_big_ones_cut_by_rows() -> None:
    found = plan([BIG, SMALL, Table("grows", 16, None)])
    places = {name: layout.placement.place for name, layout in found.shardings.items()}
    assert places == {"big": "row", "small": "replicate", "grows": "row"}
    # 250,000 rows of 64 values and the 100 rows of 8 values, 12 bytes each
    assert [found.bytes_on(rank) for rank in range(4)] == [250_000 * 64 * 12 + 100 * 8 * 12] * 4


def test_many_even_tables_go_whole_and_uneven_ones_do_not() -> None:
    even = [Table(f"t{k}", 16, 100_000) for k in range(8)]
    found = plan(even)
    assert {layout.placement.place for layout in found.shardings.values()} == {"table"}
    assert {found.bytes_on(rank) for rank in range(4)} == {2 * 100_000 * 16 * 12}
    uneven = [*even, Table("huge", 16, 10_000_000)]
    assert {x.placement.place for x in plan(uneven).shardings.values()} == {"row"}


def test_a_config_decides_for_all_tables_or_for_one() -> None:
    found = plan(
        [BIG, SMALL],
        size=3,
        place="column",
        tables={"small": {"place": "table", "rank": 2}},
    )
    assert found.shardings["big"].placement.place == "column"
    assert [found.shardings["big"].width(rank) for rank in range(3)] == [21, 21, 22]
    assert found.shardings["small"].placement.rank == 2
    by_range = plan([BIG], tables={"big": {"by": "range"}}).shardings["big"].placement
    assert (by_range.place, by_range.by) == ("row", "range")


def test_tables_placed_whole_fill_the_emptiest_rank() -> None:
    tables = [Table("a", 8, 10), Table("b", 8, 30), Table("c", 8, 25)]
    found = plan(tables, size=2, place="table")
    assert [found.shardings[name].placement.rank for name in "abc"] == [1, 0, 1]


def test_the_table_of_figures() -> None:
    text = str(plan([BIG, SMALL], size=2, optimizer=RowOptimizer("sgd")))
    lines = text.splitlines()
    assert " ".join(lines[0].split()) == "table rows dim place bytes per rank lookups per rank"
    assert " ".join(lines[1].split()) == "big 1,000,000 64 row by hash 122.1 MiB 0.50"
    assert lines[2].split() == ["small", "100", "8", "replicate", "3.1", "KiB", "0.50"]
    assert lines[-1].split() == ["imbalance", "1.00", "1.00"]
    skewed = str(plan([BIG], size=2, tables={"big": {"place": "table", "rank": 1}}))
    assert "table on rank 1" in skewed
    assert skewed.splitlines()[-1].split() == ["imbalance", "2.00", "2.00"]


def test_too_little_memory_and_unknown_tables_are_refused() -> None:
    with pytest.raises(ValueError, match=r"need 183\.1 MiB .* allows 102\.4 MiB"):
        plan([BIG], memory="102.4MiB")
    with pytest.raises(
        ValueError, match=r"names 'bog'; the model has tables: big.*; did you mean big\?"
    ):
        plan([BIG], tables={"bog": {"place": "row"}})
