"""Rows kept in bfloat16 (rows.dtype): every synchronous strategy rounds as `single` does."""

import threading
from functools import cache
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small import first_batches, small_config

from shoal.distributed.world import World
from shoal.embedding.engines.local import make_local
from shoal.embedding.rows.table import Table
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.ps.server.server import Server
from shoal.runs.build import build
from shoal.runs.parts import Parts

STEPS = 30
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy__name": "ddp"},
    "by hash": {"strategy__name": "sharded", "strategy__place": "row"},
    "by range": {
        "strategy__name": "sharded",
        "strategy__place": "row",
        "strategy__row_by": "range",
    },
    "by table": {"strategy__name": "sharded", "strategy__place": "table"},
    "ps": {"strategy__name": "ps"},
}


def parts_of(world: World, dtype: str = "bfloat16", **values: Any) -> Parts:
    optimizer = {"name": "adagrad", "lr": 0.1}
    values = {"train__batch_size": 61, "train__optimizer": optimizer, **values}
    return build(small_config("BPR", rows__dtype=dtype, **values), world)


def train(parts: Parts, world: World) -> dict[str, Any]:
    """Losses of the steps, and the rows of all items after them."""
    parts.model.train()
    slices = first_batches(parts.reader, world, STEPS)
    losses = [float(parts.strategy.train_step(batch)) for batch in slices]
    parts.strategy.synchronize()
    parts.model.eval()
    with torch.no_grad():
        rows = parts.model.encode_item(torch.arange(parts.dataset.num_items))  # type: ignore[operator, union-attr]
    return {"losses": losses, "rows": rows.tolist()}


def every_strategy(world: World, addresses: list[str]) -> dict[str, Any]:
    found = {}
    for name, values in STRATEGIES.items():
        more = {"strategy__ps__addresses": addresses} if name == "ps" else {}
        parts = parts_of(world, **values, **more)
        found[name] = train(parts, world)
        parts.strategy.close()
    return found


@cache
def alone(dtype: str) -> dict[str, Any]:
    world = World()
    return train(parts_of(world, dtype, strategy__name="single"), world)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found, by strategy."""
    servers = [Server(index=k) for k in range(2)]
    threads = [threading.Thread(target=one.serve, daemon=True) for one in servers]
    for thread in threads:
        thread.start()
    addresses = [one.address for one in servers]
    made = run_ranks(every_strategy, 2, tmp_path_factory.mktemp("bfloat16"), addresses)
    for thread in threads:
        thread.join(10)
    return made


def test_single_keeps_values_of_bfloat16_and_learns() -> None:
    rows = torch.tensor(alone("bfloat16")["rows"])
    assert torch.equal(rows, rows.to(torch.bfloat16).float())
    narrow, wide = alone("bfloat16")["losses"], alone("float32")["losses"]
    assert narrow != wide
    assert narrow[-1] < narrow[0] - 0.03
    assert narrow == pytest.approx(wide, abs=0.01)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_ranks_round_as_one_process_does(found: list[dict[str, Any]], strategy: str) -> None:
    want = alone("bfloat16")
    for rank in found:
        assert rank[strategy]["losses"] == pytest.approx(want["losses"], rel=1e-5)
        rows, expected = torch.tensor(rank[strategy]["rows"]), torch.tensor(want["rows"])
        # A sum in another order may fall on the other side of a rounding, rarely; with noise of
        # its own a rank would round half of the values otherwise.
        assert (rows == expected).float().mean() > 0.99
        torch.testing.assert_close(rows, expected, rtol=0.02, atol=1e-3)


def test_a_row_takes_half_the_memory() -> None:
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        table = Table("t", 64, 10_000, dtype=dtype)  # type: ignore[arg-type]
        sizes[dtype] = make_local(table, RowOptimizer("sgd"), 0).memory  # type: ignore[attr-defined]
    assert sizes["bfloat16"] < 0.55 * sizes["float32"]


def test_rows_of_either_kind_are_restored_by_the_other() -> None:
    world = World()
    narrow = parts_of(world, strategy__name="single")
    train(narrow, world)
    wide = parts_of(world, "float32", strategy__name="single")
    again = parts_of(world, strategy__name="single")
    for name, store in narrow.strategy.stores.items():
        for rows in store.export():
            wide.strategy.stores[name].restore(rows)
            again.strategy.stores[name].restore(rows)
        (want,), (got,), (also,) = (
            parts.strategy.stores[name].export() for parts in (narrow, wide, again)
        )
        assert torch.equal(want.values, got.values)
        assert torch.equal(want.values, also.values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"strategy__name": "sharded", "strategy__place": "column"}, "cut by columns"),
        ({"rows__tables": {"item": {"threshold": 2.0}}}, "which has dtype and init alone"),
        ({"rows__tables": {"itm": {"dtype": "bfloat16"}}}, "did you mean item"),
        ({"rows__tiers": {"host": 18_000, "ssd": "rows"}}, "leave out rows.dtype"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parts_of(World(), **values)
