"""ReplicatedRows: rows found before their gradients are there, and promises that are not kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from services import pair

from shoal.embedding.leaves.local import make_local
from shoal.embedding.leaves.native import _core
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.placed.duplicates import Touched, sum_duplicates
from shoal.embedding.placed.replicated import ReplicatedRows
from shoal.embedding.service import Lookup
from shoal.embedding.table import Table
from shoal.world.neighbours import can_be_neighbours
from shoal.world.world import World

# The core is optional (no compiler, no core), and some hosts forbid processes to share memory:
# there ranks gather instead, which the contract tests of ddp hold.
native = pytest.mark.skipif(_core is None, reason="no native core was built")
shared = pytest.mark.skipif(not can_be_neighbours(), reason="ranks share no memory here")


@native
@pytest.mark.parametrize("limit", [50, 10**6, None])
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_of_touched_rows(limit: int | None, threads: int) -> None:
    torch.manual_seed(1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for lengths in ([0], [700, 0, 3], [1], [3000, 2000]):
            ids = [torch.randint(0, 50, (n,)) for n in lengths]
            values = [torch.randn(n, 64) for n in lengths]
            touched = Touched(ids, limit)
            sums, found = (
                torch.full((len(touched) + 3, 64), 7.0),
                torch.full((len(touched) + 3,), -7),
            )
            touched.write(values, 0.3, sums, found, 2)
            order = found[2:-1].argsort()
            want_ids, want = sum_duplicates(torch.cat(ids), torch.cat(values))
            assert torch.equal(found[2:-1][order], want_ids)
            assert torch.equal(sums[2:-1][order], want.view(-1, 64) * 0.3)  # to the last bit
            assert sums[[0, 1, -1]].eq(7.0).all() and found[[0, 1, -1]].eq(-7).all()
    finally:
        torch.set_num_threads(before)


@native
def test_rows_that_cannot_be_touched() -> None:
    with pytest.raises(ValueError, match="limit"):
        Touched([torch.tensor([0, 5])], 5)
    with pytest.raises(ValueError, match="int64"):
        Touched([torch.tensor([0.5])], 5)
    with pytest.raises(ValueError, match="do not fit"):
        Touched([torch.tensor([1, 2])], 5).write([torch.ones(3, 4)], 1.0, torch.ones(2, 4), None, 0)


TABLES = {"user": Table("user", 4, 30), "item": Table("item", 6, None), "never": Table("n", 2, 9)}


def steps(world: World, promising: bool, breaking: list[int]) -> list[list[Any]]:
    """What is collected in some steps: the loss of all ranks, and gradients by id.

    breaking: ranks where a lookup gets no gradient in the third step.
    """
    leaves = {name: make_local(table, RowOptimizer("sgd"), 1) for name, table in TABLES.items()}
    rows = ReplicatedRows(leaves, None, world)
    collected = []
    for step in range(5):
        torch.manual_seed(10 * step + world.rank)
        wanted = [torch.randint(0, 9, (n + world.rank,)) for n in (40, 0 if step == 1 else 20, 20)]
        rows.begin(object(), [], {})
        lookups = [Lookup(name, ids) for name, ids in zip(("user", "item", "item"), wanted)]
        pulled = rows.pull(lookups, learn=True)
        used = pulled[: 2 if step == 2 and world.rank in breaking else 3]
        loss = torch.stack([(one * torch.randn_like(one)).sum() for one in used]).sum()
        if promising:
            rows.promise(torch.tensor(5.0) if step % 2 else 5)
        loss.backward()
        flat = torch.stack([loss.detach(), torch.tensor(5.0), torch.tensor(rows.note())])
        flat, collect = rows.collect_with(flat)
        gradients = collect(1.0 / float(flat[1]))
        summed = {name: sum_duplicates(*pair(one)) for name, one in gradients.items()}
        found = {name: [ids.tolist(), grads.tolist()] for name, (ids, grads) in summed.items()}
        collected.append([float(flat[0]), found])
        rows.apply(gradients, 0.1)
        rows.settle()
    return collected


def with_and_without(world: World) -> bool:
    ways: list[list[int]] = [[], [0], [1], list(range(world.size))]
    return world.has_board and all(steps(world, True, w) == steps(world, False, w) for w in ways)


@shared
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_promises_kept_or_not(tmp_path: Path, size: int) -> None:
    assert run_ranks(with_and_without, size, tmp_path) == [True] * size
