"""What a plan says that a step sends is what is sent, byte for byte; and known ids by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from list_models import SIZE, global_batch, on_device, set_up, slice_of
from ranks import run_ranks

from shoal.distributed.world import World
from shoal.embedding.placements.step_bytes import StepBytes, step_bytes
from shoal.embedding.rows.bags import Bags
from shoal.embedding.rows.placement import Placement, Sharding
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Lookup
from shoal.training.strategies import Strategy

ADMISSION = {"admission": {"threshold": 3.0}}
# what the strategy is given, the section rows, whether tables grow
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "row": ({"place": "row"}, {}, False),
    "table": ({"place": "table"}, {}, False),
    "column": ({"place": "column"}, {}, False),
    "replicate": ({"place": "replicate"}, {}, False),
    "growing": ({"place": "row"}, {}, True),
    "counted": ({"place": "row"}, ADMISSION, True),
    "bfloat16": ({"place": "row", "wire_dtype": "bfloat16"}, {}, False),
    "counted float16": ({"place": "row", "wire_dtype": "float16"}, ADMISSION, True),
    "groups": ({"place": "row", "groups": 2}, {}, False),
    "groups by column": ({"place": "column", "groups": 2, "wire_dtype": "bfloat16"}, {}, False),
    "counted groups": ({"place": "row", "groups": 2}, ADMISSION, True),
    "groups of one": ({"place": "row", "groups": 4}, {}, False),
}


def sent(world: World, name: str) -> tuple[int, int]:
    """Bytes that a step sent, and that the plan says."""
    section, rows, grows = CASES[name]
    strategy = set_up(world, {"name": "sharded", **section}, "sgd", rows, grows)
    batch = strategy.receive(slice_of(world, 0))
    for _ in range(3):  # until the service knows how lists are read
        before = world.bytes_sent
        strategy.train_step(batch)
    return world.bytes_sent - before, planned(strategy)[world.rank].total + dense(strategy)


def planned(strategy: Strategy) -> list[StepBytes]:
    """For the lookups of all ranks."""
    lookups, size = [], strategy.world.size
    for rank in range(size):
        start, stop = SIZE * rank // size, SIZE * (rank + 1) // size
        lookups.append(strategy.lookups(global_batch(0).rows(start, stop, start)))
    return strategy.plan.step_bytes(lookups, strategy.rows.counted)  # type: ignore[attr-defined]


def dense(strategy: Strategy) -> int:
    """Gradients, whether there are any, loss, count, and whether a row got none."""
    return 4 * (sum(p.numel() for p in strategy.dense) + len(strategy.dense) + 3)


def every_case(world: World) -> dict[str, Any]:
    return {name: sent(on_device(world), name) for name in CASES}


@pytest.mark.parametrize("shared_memory", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_step_sends_what_the_plan_says(tmp_path: Path, shared_memory: bool) -> None:
    for found in run_ranks(every_case, 4, tmp_path, shared_memory=shared_memory):
        for name, (got, said) in found.items():
            assert got == said, name


# ---- by hand ------------------------------------------------------------------------------------

TABLE = Table("t", 16, 8, padding=0)  # rank 0 has ids 0 to 3, rank 1 has 4 to 7
HEADS = 24  # three numbers for one other rank


def of_two(place: Any, ids: list[list[int]], offsets: list[list[int]]) -> list[StepBytes]:
    sharding = Sharding(TABLE, Placement(place, "range"), 2)
    lookups = [
        [Lookup("t", torch.tensor(some, dtype=torch.int64), bags=Bags(torch.tensor(ends)))]
        for some, ends in zip(ids, offsets)
    ]
    return step_bytes({"t": sharding}, lookups)


def test_sums_of_bags_by_hand() -> None:
    """Rank 0 has bags 1 4 5 6 | 0 7, rank 1 has 5 | : rank 1 sends two sums, rank 0 none."""
    found = of_two("row", [[1, 4, 5, 6, 0, 7], [5]], [[0, 4, 6], [0, 1, 1]])
    # Two lengths are one word, ids are four; two vectors of 16 values come, and go as gradients.
    assert found[0] == StepBytes(HEADS, 8 + 4 * 8, 0, 2 * 64, 0)
    assert found[1] == StepBytes(HEADS, 0, 2 * 64, 0, 0)


def test_rows_that_come_often_by_hand() -> None:
    """Rank 0 has three bags of the same id: it travels once, and its row."""
    found = of_two("row", [[5, 5, 5, 5], []], [[0, 1, 3, 4], [0]])
    assert found[0] == StepBytes(HEADS, 8, 0, 64, 0)
    assert found[1] == StepBytes(HEADS, 0, 64, 0, 0)


def test_columns_by_hand() -> None:
    """Every rank has half of the columns: of the bag 1 4 5 6 both send half a sum."""
    found = of_two("column", [[1, 4, 5, 6], [2]], [[0, 4], [0, 1]])
    assert found[0] == StepBytes(HEADS, 8 + 4 * 8, 32, 32, 0)  # and rank 1's row 2, as it asked
    assert found[1] == StepBytes(HEADS, 8, 32, 32, 0)


def test_groups_by_hand() -> None:
    """Two groups of one rank, which touch rows 5, 6 and 7, 7."""
    sharding = Sharding(TABLE, Placement("row", "range"), 1)
    lookups = [[Lookup("t", torch.tensor(ids))] for ids in ([5, 6], [7, 7])]
    found = step_bytes({"t": sharding}, lookups)
    # Lengths of two messages and of the table's part; a row's id and gradient.
    assert [one.groups for one in found] == [3 * 8 + 2 * (8 + 64), 3 * 8 + 8 + 64]
    assert all(one.total == one.groups for one in found)
