"""Rows that ranks of one host have in the same memory: the numbers of rows of one's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ranks import run_ranks
from torch import Tensor

from shoal.embedding.engines.budgets import row_bytes
from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.native import Native
from shoal.embedding.optim.rows import DEFINITIONS, RowOptimizer
from shoal.embedding.placements.replicated import ReplicatedRows
from shoal.embedding.service import Lookup, RowGradients
from shoal.embedding.store import EVERY, Rows
from shoal.embedding.table import Table
from shoal.kernels.core import has_core
from shoal.world.shm_group import Shared, can_be_neighbours
from shoal.world.world import World

# The core is optional, and some hosts forbid processes to share memory: ranks then have copies.
pytestmark = [
    pytest.mark.skipif(not has_core(), reason="no native core was built"),
    pytest.mark.skipif(not can_be_neighbours(), reason="ranks share no memory here"),
]
TABLE = Table("item", 12, 500, padding=0)


@pytest.fixture
def memory() -> Iterator[int]:
    """A descriptor of memory for TABLE with any optimizer."""
    file = os.memfd_create("rows")
    os.truncate(file, 1 << 20)
    yield file
    os.close(file)


def pushes(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    for step in range(steps):
        torch.manual_seed(step)
        ids = torch.randint(0, 500, (900 if step % 3 else 5,))
        yield ids, torch.randn(len(ids), 12)


def make_ranks(memory: int, optimizer: RowOptimizer, threads: int = 1) -> list[Native]:
    return [
        Native(TABLE, optimizer, 7, threads=threads, shared=Shared(memory, rank, 3))
        for rank in range(3)
    ]


@pytest.mark.parametrize("name", list(DEFINITIONS))
@pytest.mark.parametrize("threads", [1, 2])
def test_parts_of_a_push_make_the_whole(memory: int, name: str, threads: int) -> None:
    rule = RowOptimizer(name)
    alone, ranks = Native(TABLE, rule, 7), make_ranks(memory, rule, threads)
    assert torch.equal(ranks[1].pull(EVERY), alone.pull(EVERY))  # the same initial values
    for ids, grads in pushes(6):
        for leaf in [alone, *ranks]:
            leaf.push(ids, grads, 0.1)
        for leaf in ranks:
            assert torch.equal(leaf.pull(EVERY), alone.pull(EVERY))  # to the last bit
    whole, (kept,) = next(alone.export()), ranks[2].export()
    assert all(torch.equal(kept.state[key], value) for key, value in whole.state.items())


def test_a_delta_has_what_other_ranks_changed(memory: int) -> None:
    first, *others = make_ranks(memory, RowOptimizer("adam"))
    (ids, grads), *_ = pushes(1)
    mark = first.mark()
    for leaf in [first, *others]:
        leaf.push(ids, grads, 0.1)
    (changed,) = first.export(since=mark)
    assert changed.ids.tolist() == sorted({*ids.tolist()} - {0})
    assert torch.equal(changed.values, others[0].pull(changed.ids))


def test_what_one_restores_all_have(memory: int) -> None:
    first, second, _ = make_ranks(memory, RowOptimizer("adagrad"))
    row = Rows(torch.tensor([3]), torch.ones(1, 12), {"sum": torch.full((1, 12), 2.0)})
    first.restore(row)
    assert second.pull(torch.tensor([3])).eq(1.0).all()
    (kept,) = second.export()
    assert kept.state["sum"][3].eq(2.0).all()


def test_what_cannot_be_shared(memory: int) -> None:
    with pytest.raises(ValueError, match="grows cannot be shared"):
        Native(Table("g", 4, None), RowOptimizer("sgd"), 1, shared=Shared(memory, 0, 2))
    with pytest.raises(ValueError, match="too small"):
        Native(Table("t", 64, 10**6), RowOptimizer("sgd"), 1, shared=Shared(memory, 0, 2))
    with pytest.raises(ValueError, match="of which this is one"):
        Native(TABLE, RowOptimizer("sgd"), 1, shared=Shared(memory, 2, 2))


def test_fixed_tables_are_shared() -> None:
    asked: list[int] = []
    made = make_local(TABLE, RowOptimizer("adam"), 1, share=lambda size: asked.append(size))
    assert asked == [500 * row_bytes(TABLE, RowOptimizer("adam"))]
    assert not made.shared  # there was no such memory: rows of one's own
    make_local(Table("g", 4, None), RowOptimizer("adam"), 1, share=lambda size: asked.append(size))
    assert len(asked) == 1  # those that grow are not


def train(world: World) -> list[bool]:
    """Steps whose gradients depend on the rows: what ranks read, and a replica of one's own."""
    rule = RowOptimizer("adam")
    leaf, replica = make_local(TABLE, rule, 7, share=world.share), make_local(TABLE, rule, 7)
    rows = ReplicatedRows({"item": leaf}, None, world)
    found = [leaf.shared]
    for ids, noise in pushes(40):
        (read,) = rows.pull([Lookup("item", ids)], learn=False)
        found.append(torch.equal(read, replica.pull(ids)))
        grads = read * noise
        world.barrier()  # all have read: what `collect` sees to
        rows.apply({"item": RowGradients(ids, grads)}, 0.1)
        replica.push(ids, grads, 0.1)
    every = rows.own("item", learn=False)
    assert every is not None
    found.append(torch.equal(every, replica.pull(EVERY)))
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_nobody_reads_before_all_have_updated(tmp_path: Path, size: int) -> None:
    assert run_ranks(train, size, tmp_path) == [[True] * 42] * size
