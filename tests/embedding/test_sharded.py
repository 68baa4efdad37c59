"""Placements, routes, the sharded store and the softmax whose rows stay with their owners."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from services import Alone
from torch import Tensor

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.distributed.world import World
from shoal.embedding.engines.device import Device
from shoal.embedding.engines.init import initial_rows
from shoal.embedding.engines.reference import Reference
from shoal.embedding.module import Embeddings
from shoal.embedding.placements import replicated
from shoal.embedding.placements.replicated import ReplicatedRows
from shoal.embedding.rows.placement import Placement, Sharding
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Init, Table
from shoal.embedding.service import LocalRows, RowService
from shoal.kernels.distinct_ids import add_rows, distinct
from shoal.kernels.machine import is_wide
from shoal.models.base import Model
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.training.strategies.sharded import Sharded as ShardedStrategy

PLACES = [
    Placement("row", "hash"),
    Placement("row", "range"),
    Placement("table", rank=1),
    Placement("column"),
    Placement("replicate"),
]


@given(rows=st.integers(1, 3000), size=st.integers(1, 7), by=st.sampled_from(["hash", "range"]))
def test_every_row_has_one_owner_and_one_place(rows: int, size: int, by: Any) -> None:
    sharding = Sharding(Table("t", 4, rows), Placement("row", by), size)
    codes = sharding.codes(torch.arange(rows))
    assert codes.sort().values.tolist() == list(range(rows))
    held = [sharding.ids(rank) for rank in range(size)]
    assert max(map(len, held)) - min(map(len, held)) <= 1
    for rank in range(size):  # a rank's leaf holds the ids whose codes are its own, in their order
        expected = torch.arange(sharding.bounds[rank], sharding.bounds[rank + 1])
        assert sharding.codes(held[rank]).tolist() == expected.tolist()


def test_neighbours_and_strides_are_spread() -> None:
    sharding = Sharding(Table("t", 4, 100_000), Placement("row", "hash"), 4)
    for ids in (torch.arange(1000), torch.arange(0, 100_000, 4), torch.arange(0, 100_000, 64)):
        owners = torch.bucketize(sharding.codes(ids), torch.tensor(sharding.bounds[1:]), right=True)
        counts = torch.bincount(owners, minlength=4)
        assert int(counts.max()) < 1.3 * len(ids) / 4


def test_codes_without_the_native_core_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.randint(0, 1003, (500,))
    for size in (1, 2, 3, 5):
        sharding = Sharding(Table("t", 4, 1003, padding=0), Placement(), size)
        native = sharding.codes(ids)
        with monkeypatch.context() as patch:
            patch.setattr("shoal.kernels.distinct_ids._core", None)
            assert sharding.codes(ids).tolist() == native.tolist()
        assert native[ids == 0].tolist() == [1003] * int((ids == 0).sum())


@pytest.mark.parametrize("core", [True, False])
def test_an_id_outside_is_refused(core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not core:
        monkeypatch.setattr("shoal.kernels.distinct_ids._core", None)
    sharding = Sharding(Table("t", 4, 10), Placement(), 2)
    for id_ in (-1, 10):
        with pytest.raises(ValueError, match=f"no row {id_}: it has 10 rows, ids 0 to 9"):
            sharding.codes(torch.tensor([3, id_]))


@pytest.mark.parametrize("core", [True, False])
def test_distinct_and_sums(core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not core:
        monkeypatch.setattr("shoal.kernels.distinct_ids._core", None)
    codes = torch.tensor([5, 2, 5, 9, 2, 2])
    for limit in (10, 10_000):  # one slot per code, and sorting
        unique, places = distinct(codes, limit)
        assert unique.tolist() == [2, 5, 9]
        assert places.tolist() == [1, 0, 1, 2, 0, 0]
    grads = torch.arange(12.0).view(6, 2)
    total = add_rows(None, places, grads, 4)
    assert total.tolist() == [[20.0, 23.0], [4.0, 6.0], [6.0, 7.0], [0.0, 0.0]]
    more = add_rows(total, torch.tensor([3, 3]), torch.ones(2, 2), 4)
    assert more.tolist() == [[20.0, 23.0], [4.0, 6.0], [6.0, 7.0], [2.0, 2.0]]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="ranks 0 to 1"):
        Sharding(Table("t", 4, 10), Placement("table", rank=2), 2)
    with pytest.raises(ValueError, match="grows"):
        Sharding(Table("t", 4, None), Placement("row", "range"), 2)
    sharding = Sharding(Table("t", 4, 10), Placement("column"), 2)
    with pytest.raises(ValueError, match="whole rows"):
        Alone(sharding, World(), RowOptimizer("rowwise_adagrad"), 1)


# ---- on real ranks ------------------------------------------------------------------------------

TABLES = [
    Table("fixed", 5, 23, Init("normal", 0.1), padding=0),
    Table("small", 2, 2, Init("uniform", 0.1)),  # fewer columns than ranks, fewer rows than ranks
    Table("growing", 5, None, Init("normal", 0.1), padding=0),
]
SIZE = 3


def ids_of(table: Table, rank: int, step: int) -> Tensor:
    """Rank 1 has nothing to look up in step 1."""
    generator = torch.Generator().manual_seed(10 * rank + step)
    count = 0 if (rank, step) == (1, 1) else 9 + rank
    ids = torch.randint(0, table.rows or 40, (count,), generator=generator)
    return ids if table.rows else ids * 987_654_321_987


def grads_of(table: Table, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 + 10 * rank + step)
    return torch.randn(len(ids_of(table, rank, step)), table.dim, generator=generator)


def store_steps(world: World) -> dict[str, Any]:
    """Pulls of all ranks' ids after each of three pushes, and what is exported."""
    found: dict[str, Any] = {}
    for table in TABLES:
        for placement in PLACES:
            if table.rows is None and placement.place in ("column",):
                continue
            by_range = placement.by == "range" and placement.place == "row"
            if table.rows is None and by_range:
                continue
            sharding = Sharding(table, placement, world.size)
            store = Alone(sharding, world, RowOptimizer("adagrad"), seed=3)
            pulled = []
            for step in range(3):
                store.push(ids_of(table, world.rank, step), grads_of(table, world.rank, step), 0.1)
                pulled.append(store.pull(ids_of(table, world.rank, step)).tolist())
            rows = [
                (r.ids.tolist(), r.values.tolist(), r.state["sum"].tolist())
                for r in store.export(7)
            ]
            copy = Alone(sharding, world, RowOptimizer("adagrad"), seed=4)
            found[f"{table.name} {placement}"] = {
                "pulled": pulled,
                "rows": rows,
                "step": store.step,
                "copied": copied(world, store, copy, ids_of(table, world.rank, 0)),
            }
    found["softmax"] = softmax(world)
    found["stripes"] = stripes(world)
    found["sent"] = world.bytes_sent
    return found


def copied(world: World, store: Alone, copy: Alone, ids: Tensor) -> bool:
    """Whether a store restored from everything exported reads the same. Rank 0 has the rows."""
    chunks = list(store.export(7))
    lengths = torch.tensor([len(chunk.ids) for chunk in chunks], dtype=torch.int64)
    for number in range(world.gather([lengths])[1][0][0]):
        some = chunks[number] if world.is_main else None
        parts = [torch.empty(0, dtype=torch.int64), torch.empty(0, store.table.dim)]
        parts.append(parts[1])
        if some is not None:
            parts = [some.ids, some.values, some.state["sum"]]
        ids_, values, total = world.gather(parts)[0]  # of rank 0: the others give none
        copy.restore(Rows(ids_, values, {"sum": total}))
    return bool(torch.equal(store.pull(ids), copy.pull(ids)))


@pytest.mark.parametrize("rows", [1, 7, 8, 14, 15])
def test_the_last_row_is_exported_too(rows: int) -> None:
    """With 1, 8 and 15 rows it stands alone in its chunk."""
    sharding = Sharding(Table("t", 4, rows), Placement("row"), 1)
    store = Alone(sharding, World(), RowOptimizer("sgd"), seed=3)
    chunks = list(store.export(7))
    assert [id_ for chunk in chunks for id_ in chunk.ids.tolist()] == list(range(rows))
    assert max(len(chunk.ids) for chunk in chunks) <= 7


class Bag(Model):
    """One table of items with a bias each, to ask the softmax of."""

    def __init__(self, rows: int) -> None:
        torch.nn.Module.__init__(self)
        items = Table("item", 4, rows, Init("normal", 0.5), padding=0)
        bias = Table("bias", 1, rows, Init("normal", 0.5))
        self.embed = Embeddings(item=items, bias=bias)


def softmax(world: World) -> dict[str, Any]:
    """Loss and gradients of a softmax over 11 rows but the last. Rank 1 asks nothing."""
    found: dict[str, Any] = {}
    for name, tables in {
        "row": {},
        "bias elsewhere": {"bias": {"place": "replicate"}},
        "bias by range": {"bias": {"by": "range"}},
        "table": {"item": {"place": "table", "rank": 1}},
        "column": {"item": {"place": "column"}},
    }.items():
        section = StrategySection(name="sharded", place="row", tables=tables)
        strategy = ShardedStrategy(world, section)
        strategy.setup(Bag(11), OptimizerSection(name="sgd", lr=1.0), seed=5)
        strategy.model.train()
        hidden, targets = question(world.rank)
        hidden.requires_grad_()
        embed = strategy.model.embed
        loss = embed.full_softmax("item", hidden, targets, "bias", stop=10)
        loss.backward()
        strategy.rows.apply(strategy.rows.collect().rows, 1.0)
        everything = torch.arange(11)
        with torch.no_grad():
            after = {f: embed.rows(f, everything).tolist() for f in ("item", "bias")}
        found[name] = {"loss": float(loss), "hidden": hidden.grad.tolist(), **after}
    return found


def question(rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    count = 0 if rank == 1 else 3 + rank
    hidden = torch.randn(count, 4, generator=generator)
    targets = torch.randint(1, 10, (count,), generator=generator)
    targets[1:2] = 0  # does not count
    return hidden, targets


STRIPED_STEPS = ["softmax", "softmax", "two", "looked up", "softmax", "all looked up", "softmax"]


def stripes(world: World) -> bool:
    """Replicas whose output table ranks update in stripes, beside one process with all positions.

    Whether there were stripes.
    """
    replicated.STRIPED = 0
    tables = {
        "output": Table("output", 4, 11, Init("normal", 0.5), padding=0, whole=True),
        "bias": Table("bias", 1, 11, Init("normal", 0.5), padding=0, whole=True),
    }
    sides = []
    for among in (True, False):
        leaves = {
            name: Device(table, RowOptimizer("adam"), 5, "cpu", fused=True)
            for name, table in tables.items()
        }
        rows = ReplicatedRows(leaves, None, world) if among else LocalRows(leaves)
        embed = Embeddings(tables)
        embed.attach(rows)
        sides.append((embed.train(), rows, leaves))
    for number, kind in enumerate(STRIPED_STEPS):
        striped_step(*sides[0][:2], kind, [world.rank])
        striped_step(*sides[1][:2], kind, list(range(SIZE)))
        if number % 2 == 0:  # between the others nothing is fetched
            sides[0][1].synchronize()
            for name, leaf in sides[1][2].items():
                found = sides[0][2][name]
                assert found.step == leaf.step == number + 1
                close(found.values, leaf.values)
                for key, part in leaf.state.items():
                    close(found.state[key], part)
    return bool(sides[0][1]._stripes)


def striped_step(embed: Embeddings, rows: RowService, kind: str, of: list[int]) -> None:
    """One step by the positions of some ranks; rows are looked up after the softmax."""
    rows.begin(object(), [])
    for rank in of:
        hidden, targets = question(rank)
        for _ in range(2 if kind == "two" else 1):
            states = hidden.clone().requires_grad_()
            embed.full_softmax("output", states, targets, "bias", stop=10).backward()
        if kind == "looked up":  # rank 1 looks up nothing
            embed.rows("output", targets).square().sum().backward()
        if kind == "all looked up":
            embed.whole("output").square().sum().backward()
    rows.apply(rows.collect().rows, 0.1, 0.5)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(store_steps, SIZE, tmp_path_factory.mktemp("sharded"))


def test_a_sharded_store_is_one_store_of_everybodys_ids(ranks: list[dict[str, Any]]) -> None:
    checked = 0
    for table in TABLES:
        one = Reference(table, RowOptimizer("adagrad"), seed=3)
        expected: list[list[Any]] = []
        for step in range(3):
            each = range(SIZE)
            ids = torch.cat([ids_of(table, rank, step) for rank in each])
            one.push(ids, torch.cat([grads_of(table, rank, step) for rank in each]), 0.1)
            expected.append([one.pull(ids_of(table, rank, step)).tolist() for rank in each])
        held = [(r.ids, r.values, r.state["sum"]) for r in one.export(7)]
        for placement in PLACES:
            name = f"{table.name} {placement}"
            for rank in range(SIZE):
                if name not in ranks[rank]:
                    continue
                checked += 1
                found = ranks[rank][name]
                assert found["step"] == 3
                for step in range(3):
                    close(found["pulled"][step], expected[step][rank])
                assert found["copied"]
            if name in ranks[0]:
                rows = ranks[0][name]["rows"]
                assert all(ranks[rank][name]["rows"] == [] for rank in (1, 2))
                for k in range(3):
                    whole = torch.cat([torch.tensor(part[k]) for part in rows])
                    close(whole, torch.cat([h[k] for h in held]))
    assert checked == SIZE * (5 + 5 + 3)


def test_stripes_are_updated_as_one_process_does(ranks: list[dict[str, Any]]) -> None:
    assert [rank["stripes"] for rank in ranks] == [is_wide()] * SIZE


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found), torch.as_tensor(expected), rtol=1e-6, atol=1e-6
    )


def test_softmax_over_shards_is_cross_entropy(ranks: list[dict[str, Any]]) -> None:
    bag = Bag(11)
    items = initial_rows(bag.embed.tables["item"], 5, torch.arange(11)).requires_grad_()
    bias = initial_rows(bag.embed.tables["bias"], 5, torch.arange(11)).requires_grad_()
    losses, hiddens = [], []
    for rank in range(SIZE):
        hidden, targets = question(rank)
        hiddens.append(hidden.requires_grad_())
        logits = hidden @ items[1:10].T + bias[1:10, 0]
        losses.append(F.cross_entropy(logits, targets - 1, ignore_index=-1, reduction="sum"))
    sum(losses).backward()  # type: ignore[union-attr]
    for rank in range(SIZE):
        assert len(ranks[rank]["softmax"]) == 5
        for name, found in ranks[rank]["softmax"].items():
            assert found["loss"] == pytest.approx(losses[rank].item(), rel=1e-5), name
            expected = hiddens[rank].grad if len(hiddens[rank]) else torch.empty(0)
            close(found["hidden"], expected)
            close(found["item"], (items - items.grad).detach())  # type: ignore[operator]
            close(found["bias"], (bias - bias.grad).detach())  # type: ignore[operator]
