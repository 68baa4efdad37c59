"""Counts of ids on their way to the owners of rows: known answers, what they cost, edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from captured_warnings import listening
from click_batches import global_batch, make_model
from ranks import run_ranks
from services import Alone
from torch import Tensor

from shoal.config.row_rules import RowRules, RowsSection
from shoal.config.schema import OptimizerSection, StrategySection
from shoal.distributed.world import World
from shoal.embedding.engines.row_files import BLOOM, chunks
from shoal.embedding.rows.admission import Pending, Shrink, admission_of, apply_row_rules
from shoal.embedding.rows.placement import Placement, Sharding
from shoal.embedding.rows.table import Init, Table
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.training.checkpoint.snapshot import restore_into, take_snapshot
from shoal.training.checkpoint.writing import Checkpoints
from shoal.training.strategies import Strategy, make_strategy

ADS = Table("ads", 2, None, Init("constant", 0.0), padding=0)
PLACES = ["row", "table", "replicate"]


def make_store(world: World, place: str = "row", optimizer: str = "sgd", **rules: Any) -> Alone:
    sharding = Sharding(ADS, Placement(place), world.size)  # type: ignore[arg-type]
    admission = admission_of(RowRules.model_validate(rules), sharding.share(world.rank))
    made = RowOptimizer(optimizer)  # type: ignore[arg-type]
    return Alone(sharding, world, made, seed=1, admission=admission)


def known(world: World, place: str) -> dict[str, Any]:
    """Rank 0 pushes 7, 7 and 8, rank 1 pushes 7 and padding; then rank 1 alone pushes 8."""
    store = make_store(world, place, admission={"threshold": 3.0})
    mine = torch.tensor([[7, 7, 8], [7, 0, 0]][world.rank])
    store.push(mine, torch.ones(3, 2), 0.5)
    first = store.pull(torch.tensor([7, 8, 0])).tolist()
    more = torch.tensor([[], [8, 8]][world.rank], dtype=torch.int64)
    pending = [one.ids.tolist() + one.show.tolist() for one in store.export_pending()]
    store.push(more, torch.full((len(more), 2), 3.0), 0.5)
    second = store.pull(torch.tensor([7, 8, 0])).tolist()
    return {"first": first, "second": second, "pending": pending}


def capacity(world: World, place: str) -> list[int]:
    """Rows that this rank's leaf keeps of 100, when the table may have 11; how many are said to
    have gone."""
    rules = {"shrink": {"every": 2, "capacity": 11}}
    store, gone = make_store(world, place, **rules), []
    shrink = store.shrink

    def watched(rule: Shrink) -> int:
        gone.append(shrink(rule))
        return gone[-1]

    store.shrink = watched  # type: ignore[method-assign]
    for _ in range(2):
        store.push(torch.arange(1, 101), torch.ones(100, 2), 0.1)
        apply_row_rules(store, RowRules.model_validate(rules), store.sharding.num_shares)
    kept = 0 if store.engine is None else len(store.engine)  # type: ignore[arg-type]
    return [kept, *gone]


def traffic(world: World, rules: dict[str, Any]) -> dict[str, int]:
    """Bytes and trips of a step; and how many distinct ids of this rank are another's."""
    strategy = make_strategy(StrategySection(name="sharded", place="row"), world)
    strategy.setup(
        make_model("DNN", "grows"),
        OptimizerSection(name="sgd"),
        seed=1,
        rows=RowsSection.model_validate(rules),
    )
    batch = global_batch(1, "one", "grows")
    batch = batch.rows(*world.slice(batch.size))
    trips = []
    start, before = world.start_all_to_all, world.bytes_sent

    def counted(*arguments: Any) -> Any:
        trips.append(1)
        return start(*arguments)

    world.start_all_to_all = counted  # type: ignore[method-assign]
    strategy.train_step(batch)
    world.start_all_to_all = start  # type: ignore[method-assign]
    ids = torch.unique(batch.flat_ids("slots"))
    sharding = strategy.stores["slots"].sharding  # type: ignore[attr-defined]
    away = int((sharding.owners(ids) != world.rank).sum())
    return {"bytes": world.bytes_sent - before, "trips": len(trips), "away": away}


FILTERED = {
    "admission": {"threshold": 4.0, "bloom_counters": 1000},
    "counter_decay": {"every": 3, "rate": 0.75},
}


def strategy_with(world: World, name: Any, place: Any = "row") -> Strategy:
    strategy = make_strategy(StrategySection(name=name, place=place), world)
    strategy.setup(
        make_model("DNN", "grows"),
        OptimizerSection(name="adagrad", lr=0.5),
        seed=1,
        rows=RowsSection.model_validate(FILTERED),
    )
    return strategy


def filters(world: World, folder: str, place: str) -> dict[str, Any]:
    """A run that is resumed goes on as if it had never stopped: ids have come before."""

    def train(strategy: Strategy, begin: int, end: int) -> list[float]:
        batches = [global_batch(k, "one", "grows") for k in range(begin, end)]
        return [float(strategy.train_step(one.rows(*world.slice(one.size)))) for one in batches]

    strategy, other = (strategy_with(world, "sharded", place) for _ in range(2))
    train(strategy, 1, 7)
    checkpoints = Checkpoints(Path(folder) / place, world)
    checkpoints.save(strategy, {"step": 1})
    checkpoints.wait()
    world.barrier()
    with listening() as heard:
        restore_into(other, checkpoints.load_step(1))
    losses = [train(one, 7, 14) for one in (strategy, other)]
    files = [list(take_snapshot(one, {}).files.values()) for one in (strategy, other)]
    return {"same": losses[0] == losses[1] and files[0] == files[1], "heard": heard}


def on_ranks(world: World, folder: str) -> dict[str, Any]:
    return {
        "filters": {place: filters(world, folder, place) for place in PLACES},
        "known": {place: known(world, place) for place in PLACES},
        "capacity": {place: capacity(world, place) for place in PLACES},
        "plain": traffic(world, {}),
        "by norm": traffic(world, {"shrink": {"every": 5, "min_norm": 0.001}}),
        "counted": traffic(world, {"admission": {"threshold": 1000.0}}),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counts")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return run_ranks(on_ranks, 2, folder, str(folder))


@pytest.mark.parametrize("place", PLACES)
def test_ids_count_over_all_ranks(ranks: list[dict[str, Any]], place: str) -> None:
    """7 came three times in the first step and has a row at once; 8 in the second, for the third
    time, and learns the gradients of that step alone.
    """
    for rank in ranks:
        found = rank["known"][place]
        assert found["first"] == [[-1.5, -1.5], [0.0, 0.0], [0.0, 0.0]]
        assert found["second"] == [[-1.5, -1.5], [-3.0, -3.0], [0.0, 0.0]]
    assert [rank["known"][place]["pending"] for rank in ranks] == [[[8, 1.0]], []]


def test_owners_share_the_capacity(ranks: list[dict[str, Any]]) -> None:
    """Each of two its half, rounded up; one owner has all of it, and so has every replica."""
    found = [rank["capacity"] for rank in ranks]
    assert [one["row"] for one in found] == [[6, 88], [6, 88]]
    assert [one["table"] for one in found] == [[11, 89], [0, 89]]
    assert [one["replicate"] for one in found] == [[11, 89], [11, 89]]


def test_counts_are_eight_bytes_an_id_and_no_trip_more(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        plain, by_norm, counted = rank["plain"], rank["by norm"], rank["counted"]
        assert (
            plain["trips"] == by_norm["trips"] == counted["trips"] == 4
        )  # counts, ids, rows, back
        assert plain["bytes"] == by_norm["bytes"] and plain["away"] > 20
        assert counted["bytes"] - plain["bytes"] == 8 * plain["away"]


@pytest.mark.parametrize("place", PLACES)
def test_filters_are_in_checkpoints(ranks: list[dict[str, Any]], place: str, folder: Path) -> None:
    """Cut by rows each rank has its own, and one process cannot take them over; else it can."""
    assert [rank["filters"][place] for rank in ranks] == [{"same": True, "heard": []}] * 2
    tables = ["slots"] if place == "row" else []
    one = strategy_with(World(), "single")
    with listening() as heard:
        restore_into(one, Checkpoints(folder / place, World()).load_step(1))
    assert len(heard) == len(tables)
    for line, table in zip(heard, tables):
        assert line.startswith(f"table {table}: ids without a row are counted from nothing again")
        assert "2 × 512 bytes (parts × bytes), here it is 1 × 1024" in line
    parts = [chunk[BLOOM[0]] for chunk in chunks(one.stores["slots"]) if BLOOM[0] in chunk]
    assert bool(torch.cat(parts).any()) == (place != "row")


# ---- one rank -----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_counters_are_exported_and_restored_to_the_bit(optimizer: str) -> None:
    """Also steps that no float32 can hold."""
    rules = {"admission": {"threshold": 3.0}}
    store = make_store(World(), optimizer=optimizer, **rules)
    ids = torch.tensor([1, 1, 1, 2, -5, -5, -5, -5, 9])
    store.step = 2**24 + 6
    store.push(ids, torch.arange(18.0).view(9, 2), 0.5)
    store.step = 2**30 + 2
    store.push(torch.tensor([-5, 9]), torch.ones(2, 2), 0.5)
    rows = {}
    for chunk in store.export(1):
        parts = [chunk.state[name] for name in ("show", "click", "last_step")]
        assert [part.dtype for part in parts] == [torch.float32, torch.float32, torch.int64]
        rows[int(chunk.ids)] = [float(parts[0]), float(parts[1]), int(parts[2])]
    assert rows == {-5: [5.0, 0.0, 2**30 + 3], 1: [3.0, 0.0, 2**24 + 7]}
    pending = [one for some in store.export_pending(1) for one in columns(some)]
    assert pending == [(2, 1.0, 0.0, 2**24 + 7), (9, 2.0, 0.0, 2**30 + 3)]
    copy = make_store(World(), optimizer=optimizer, **rules)
    for chunk in store.export(1):
        copy.restore(chunk)
    for some in store.export_pending(1):
        copy.restore_pending(some)
    for mine, theirs in zip(chunks(store), chunks(copy), strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def columns(pending: Pending) -> list[tuple[float, ...]]:
    parts: list[Tensor] = [pending.ids, pending.show, pending.click, pending.last_step]
    return list(zip(*(part.tolist() for part in parts)))


def test_nothing_is_exported_of_a_table_where_nothing_came() -> None:
    for place in (*PLACES, "column"):
        store = make_store(World(), place, admission={"threshold": 3.0})
        assert list(chunks(store)) == []


def test_parts_of_a_batch_count_as_the_whole() -> None:
    """Also with lists, whose ids may come twice in one sample."""
    counts = []
    for cuts in ([(0, 61)], [(0, 20), (20, 61)]):
        strategy = make_strategy(StrategySection(name="sharded", place="row"), World())
        strategy.setup(
            make_model("DNN", "grows"),
            OptimizerSection(name="sgd"),
            seed=1,
            rows=RowsSection.model_validate({"admission": {"threshold": 1000.0}}),
        )
        batch = global_batch(1, "lists", "grows")
        strategy.step([batch.rows(*cut) for cut in cuts], 0.1)
        counts += [columns(one) for one in strategy.stores["slots"].export_pending()]  # type: ignore[attr-defined]
    assert counts[0] == counts[1]
    flat = global_batch(1, "lists", "grows").flat_ids("slots")
    assert sum(show for _, show, _, _ in counts[0]) == len(flat)
    assert 0 < sum(click for _, _, click, _ in counts[0]) < len(flat)
