"""The board: what ranks of one host leave there for each other, and who reads it when."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from forks import forked
from ranks import free_port, run_ranks
from torch import Tensor

from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.native import Native
from shoal.embedding.optim.rows import DEFINITIONS, RowOptimizer
from shoal.embedding.placements.duplicates import sum_duplicates
from shoal.embedding.placements.replicated import ReplicatedRows
from shoal.embedding.service import Lookup
from shoal.embedding.store import EVERY
from shoal.embedding.table import Table
from shoal.kernels.board import Board, Given
from shoal.kernels.core import has_core
from shoal.world.shm_group import RING, Shared, can_be_neighbours
from shoal.world.variables import set_rank
from shoal.world.world import PeerLost, World, connect

# The core is optional, and some hosts forbid processes to share memory: ranks then gather.
pytestmark = [
    # The board is memory that the core writes, between processes of one Linux host.
    pytest.mark.skipif(not has_core(), reason="no native core was built"),
    pytest.mark.skipif(not can_be_neighbours(), reason="ranks share no memory here"),
]
BYTES = 1 << 24
TABLE = Table("item", 12, 500, padding=0)


@pytest.fixture
def memory() -> Iterator[int]:
    """A descriptor of memory for a board, or for TABLE with any optimizer."""
    file = os.memfd_create("board")
    os.truncate(file, BYTES)
    yield file
    os.close(file)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def make_boards(memory: int, size: int) -> list[Board]:
    return [Board(memory, 0, BYTES, rank, size) for rank in range(size)]


@pytest.mark.parametrize("limit", [50, 10**6, 10**9, None])
@pytest.mark.usefixtures("threads")
def test_rows_of_all_ranks(memory: int, limit: int | None) -> None:
    torch.manual_seed(1)
    boards = make_boards(memory, 2)
    for lengths in ([0], [700, 0, 3], [], [1], [6000, 5000], [2]):
        given, want = [], []
        for rank, board in enumerate(boards):
            some = [n + rank for n in lengths]
            ids, values = (
                [torch.randint(0, 50, (n,)) for n in some],
                [torch.randn(n, 64) for n in some],
            )
            counts = [torch.ones(n, 2) for n in some]
            given.append((ids, values, counts))
            flat = torch.tensor([1.5, float(rank)])
            assert (
                board.write(flat, [Given(ids, values, 64, limit), Given(ids, counts, 2, limit)])
                >= 8
            )
            none = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, 64)]
            want.append(sum_duplicates(torch.cat(ids + none[0]), torch.cat(values + none[1])))
        for board in boards:
            flat = torch.empty(2)
            assert board.read(flat)
            assert flat.tolist() == [3.0, 1.0]
            found, sums = board.rows(0, 64, 0.3)
            again, counts = board.rows(1, 2, 1.0)
            assert torch.equal(found, again)
            total = sum(map(len, (one for ids, _, _ in given for one in ids)))
            assert counts.sum() == 2 * total
            for want_ids, want_sums in want:  # in order of rank, to the last bit
                order = found[: len(want_ids)].argsort()
                assert torch.equal(found[order], want_ids)
                assert torch.equal(sums[order], want_sums.view(-1, 64) * 0.3)
                found, sums = found[len(want_ids) :], sums[len(want_ids) :]
            assert len(found) == 0


def one_row(number: int) -> list[Given]:
    return [Given([torch.tensor([number])], [torch.full((1, 3), float(number))], 3, 9)]


def test_what_was_not_written_in_this_step_is_not_read(memory: int) -> None:
    first, second = make_boards(memory, 2)
    flat = torch.zeros(1)
    for step in range(3):
        first.write(flat, one_row(step))
        for _ in range(2):  # what lies there is of the second step before, or nothing
            with pytest.raises(ValueError, match="not written in this step"):
                first.read(flat)
            with pytest.raises(ValueError, match="not written in this step"):
                first.rows(0, 3, 1.0)
        second.write(flat, one_row(step + 1))
        assert first.read(flat) and second.read(flat)
        assert first.rows(0, 3, 1.0)[0].tolist() == [step, step + 1]


def test_a_step_ahead_writes_elsewhere(memory: int) -> None:
    first, second = make_boards(memory, 2)
    flat = torch.zeros(1)
    for board in (first, second):
        board.write(flat, one_row(4))
    second.write(flat, one_row(5))  # who has read everything need not wait for others who read
    assert first.read(flat)
    assert first.rows(0, 3, 2.0)[1].tolist() == [[8.0] * 3] * 2


def test_no_room(memory: int) -> None:
    boards = make_boards(memory, 2)
    much = BYTES // 4 // 64 // 4 - 10
    for length, fits in ((much, False), (5, True)):
        for rank, board in enumerate(boards):
            rows = length if rank else 5
            given = Given([torch.arange(rows)], [torch.ones(rows, 64)], 64, None)
            assert (board.write(torch.ones(3), [given]) > 0) == (fits or rank == 0)
        assert [board.read(torch.ones(3)) for board in boards] == [fits] * 2


def test_what_cannot_be_written(memory: int) -> None:
    board = Board(memory, 0, BYTES, 0, 1)
    for ids, values, message in (
        (torch.tensor([0, 9]), torch.ones(2, 3), "limit"),
        (torch.tensor([0.5]), torch.ones(1, 3), "int64"),
        (torch.tensor([1, 2]), torch.ones(3, 3), r"\[3, 3\]; they must be torch.float32 \[2, 3\]"),
        (torch.tensor([1]), torch.ones(1, 3).double(), "float32"),
        (torch.arange(4)[::2], torch.ones(2, 3), r"ids \[2\] have strides \[2\].*contiguous"),
        (torch.tensor([1, 2]), torch.ones(1, 3).expand(2, 3), r"values .*strides.*contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            board.write(torch.ones(1), [Given([ids], [values], 3, 9)])
    with pytest.raises(ValueError, match="too small"):
        Board(memory, BYTES, 4096, 0, 1)
    with pytest.raises(ValueError, match="ranks 0 to"):
        Board(memory, 0, BYTES, 2, 2)


def batches(steps: int, rank: int) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    for step in range(steps):
        torch.manual_seed(100 * step + rank)
        sizes = (900, 40) if step % 3 else (5, 0)
        yield [torch.randint(0, 500, (n,)) for n in sizes], [torch.randn(n, 12) for n in sizes]


@pytest.mark.parametrize("name", list(DEFINITIONS))
@pytest.mark.parametrize("many", [1, 3])
def test_a_push_from_the_board(memory: int, name: str, many: int) -> None:
    """The rows, and the delta, that a push of everybody's sums by one process leaves."""
    rule, file = RowOptimizer(name), os.memfd_create("rows")
    os.truncate(file, 1 << 20)
    alone, boards = Native(TABLE, rule, 7), make_boards(memory, 3)
    leaves = [Native(TABLE, rule, 7, threads=many, shared=Shared(file, r, 3)) for r in range(3)]
    marks = [leaf.mark() for leaf in (alone, *leaves)]
    for one in zip(*(batches(6, rank) for rank in range(3))):
        summed = []
        for board, (ids, grads) in zip(boards, one):
            board.write(torch.zeros(0), [Given(ids, grads, 12, 500)])
            summed.append(sum_duplicates(torch.cat(ids), torch.cat(grads)))
        for leaf, board in zip(leaves, boards):
            Native.push_posted([leaf], board, [0], 0.1, 0.25)
        ids = torch.cat([ids for ids, _ in summed])
        alone.push(ids, torch.cat([grads for _, grads in summed]) * 0.25, 0.1)
        for leaf in leaves:
            assert torch.equal(leaf.pull(EVERY), alone.pull(EVERY))  # to the last bit
    changed = [next(leaf.export(since=m)).ids for leaf, m in zip((alone, *leaves), marks)]
    assert all(torch.equal(changed[0], other) for other in changed[1:])
    assert {leaf.step for leaf in (alone, *leaves)} == {6}
    with pytest.raises(ValueError, match="share"):
        Native.push_posted([alone], boards[0], [0], 0.1, 1.0)
    os.close(file)


TABLES = {"user": Table("user", 4, 30), "item": Table("item", 6, None), "never": Table("n", 2, 9)}


def steps(world: World, size: int, seen: bool) -> list[object]:
    """Some steps; the sums of `flat`, gradients that were looked at, and all rows in the end."""
    leaves = {
        name: make_local(table, RowOptimizer("adagrad"), 1, share=world.share)
        for name, table in TABLES.items()
    }
    rows = ReplicatedRows(leaves, None, world)
    found: list[object] = []
    for step in range(5):
        torch.manual_seed(10 * step + world.rank)
        wanted = [torch.randint(0, 9, (n + world.rank,)) for n in (40, 0 if step == 1 else 20, 20)]
        rows.begin(object(), [], {})
        lookups = [Lookup(name, ids) for name, ids in zip(("user", "item", "item"), wanted)]
        pulled = rows.pull(lookups, learn=True)
        used = pulled[: 2 if step == 2 and world.rank == 1 else 3]  # a lookup without gradients
        loss = torch.stack([(one * torch.randn_like(one)).sum() for one in used]).sum()
        loss.backward()
        # A whole number: Gloo adds up many floats in an order of its own.
        flat, collect = rows.collect_with(torch.full((size,), loss.detach().round()), seen)
        gradients = collect(0.3)
        for name, one in gradients.items() if seen else ():
            assert isinstance(one.ids, Tensor)
            ids, grads = sum_duplicates(one.ids, one.grads)
            found.append([name, ids.tolist(), grads.tolist()])
        found.append(flat[:3].tolist())
        rows.apply(gradients, 0.1, 0.3)
    ids = torch.arange(9)
    found += [rows.pull([Lookup(n, ids)], learn=False)[0].tolist() for n in TABLES]
    return [leaves["user"].shared == world.has_board, *found]


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("floats", [3, RING // 4])
def test_on_the_board_as_by_sockets(tmp_path: Path, seen: bool, floats: int) -> None:
    ways = [
        run_ranks(steps, 3, tmp_path / str(shared), floats, seen, shared_memory=shared)
        for shared in (True, False)
    ]
    assert ways[0] == ways[1]
    assert all(one == ways[0][0] and one[0] for one in ways[0])  # and every rank has the same


def late(world: World) -> list[bool]:
    """Ranks that write late, and read late: all read what all have written in the same step."""
    right = []
    for step in range(40):
        if (step + world.rank) % 3 == 0:
            time.sleep(0.003)
        mine = one_row((step + world.rank) % 9)
        flat = torch.tensor([float(step)])
        board = world.post(flat, mine)
        assert board is not None
        if (step + world.rank) % 4 == 0:
            time.sleep(0.003)
        ids, values = board.rows(0, 3, 1.0)
        want = torch.tensor([(step + rank) % 9 for rank in range(world.size)])
        right.append(bool(flat == world.size * step) and torch.equal(ids, want))
        right.append(torch.equal(values, want.view(-1, 1).float().expand(-1, 3)))
    return right


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_late_ranks(tmp_path: Path, size: int) -> None:
    assert run_ranks(late, size, tmp_path) == [[True] * 80] * size


def impatient(world: World) -> str:
    """Rank 0 does not wait for rank 1, which is late."""
    assert world.neighbours is not None
    message = ""
    if world.rank == 0:
        world.neighbours.barrier = lambda: None  # type: ignore[method-assign]
        try:
            world.post(torch.zeros(1), one_row(1))
        except ValueError as error:
            message = str(error)
        world.neighbours.start_barrier()
    else:
        time.sleep(0.5)
        world.post(torch.zeros(1), one_row(1))
    world.all_reduce(torch.zeros(1))
    return message


def test_who_does_not_wait_is_told(tmp_path: Path) -> None:
    told, _ = run_ranks(impatient, 2, tmp_path)
    assert "not written in this step" in told


def die(rank: int, port: int, folder: str, before: bool) -> None:
    """Rank 1 is killed, before it has written its gradients, or when it has not applied them."""
    set_rank(rank, 2, rank, 2, "127.0.0.1", port)
    world = connect("cpu", 60.0, threads=1)
    leaf = make_local(TABLE, RowOptimizer("adam"), 7, share=world.share)
    rows = ReplicatedRows({"item": leaf}, None, world)
    assert leaf.shared
    try:
        for step in range(6):
            (pulled,) = rows.pull([Lookup("item", torch.arange(1, 300))], learn=True)
            pulled.sum().backward()
            if rank == 1 and step == 3 and before:
                os.kill(os.getpid(), signal.SIGKILL)
            _, collect = rows.collect_with(torch.ones(3), seen=False)
            gradients = collect(1.0)
            if rank == 1 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            rows.apply(gradients, 0.1)
    except PeerLost as error:
        (Path(folder) / "told").write_text(f"{step}: {error}")


@pytest.mark.parametrize("before", [True, False])
def test_a_rank_that_dies(tmp_path: Path, before: bool) -> None:
    port = free_port()
    ranks = [forked(die, rank, port, str(tmp_path), before) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0, -signal.SIGKILL]
    during = "3: rank 0 lost its peers during post" if before else "4: rank 0 lost its peers"
    told = (tmp_path / "told").read_text()
    assert told.startswith(during) and told.endswith("rank 1 is gone")
