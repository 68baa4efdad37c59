"""Click models train under every strategy as one process does, on ids and on lists of ids."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch, Jagged
from shoal.models import find
from shoal.models.base import Facts
from shoal.strategy import make_strategy
from shoal.world import World

STEPS, BATCH, SLOTS, DENSE, ROWS = 20, 61, 5, 3, 300
SMALL = {"dim": 6, "layers": [16, 8], "initial_range": 0.1}
MODELS: dict[str, dict[str, Any]] = {
    "LR": {},
    "FM": {"dim": 6},
    "DNN": SMALL,
    "WideDeep": {**SMALL, "wide_slots": True},
    "DeepFM": SMALL,
    "DCNV2": SMALL,
    "DLRM": {"dim": 6, "bottom_layers": [16], "top_layers": [16]},
}
# name of the strategy, what else it is told
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"name": "ddp"},
    "row": {"name": "sharded", "place": "row"},
    "column": {"name": "sharded", "place": "column"},
    "table": {"name": "sharded", "place": "table"},
}
QUICK = [  # model, ids, strategy, rows
    ("DNN", "one", "ddp", "fixed"),
    ("DNN", "one", "row", "fixed"),
    ("DNN", "lists", "ddp", "grows"),
    ("DNN", "lists", "row", "fixed"),
    ("WideDeep", "one", "row", "grows"),
    ("DeepFM", "lists", "row", "grows"),
    ("DeepFM", "weighted", "column", "fixed"),
    ("FM", "weighted", "ddp", "fixed"),
    ("LR", "lists", "table", "fixed"),
    ("DCNV2", "one", "table", "fixed"),
    ("DLRM", "lists", "column", "fixed"),
]
ALL = [
    (model, kind, strategy, rows)
    for model in MODELS
    for kind in ("one", "lists", "weighted")
    for strategy in STRATEGIES
    for rows in ("fixed", "grows")
    if (strategy, rows) != ("column", "grows")  # which is refused
]


def global_batch(step: int, kind: str, rows: str) -> Batch:
    """The same on every rank; some lists are empty."""
    random = torch.Generator().manual_seed(100 + step)
    size = BATCH if step % 7 else 1  # one sample: the other ranks have none
    dense = torch.randn(size, DENSE, generator=random)
    labels = torch.randint(0, 2, (size,), generator=random).float()

    def draw(*shape: int) -> torch.Tensor:
        ids = torch.randint(0, ROWS, shape, generator=random)
        return ids * 0x123456789ABCD - 7 if rows == "grows" else ids

    ids: torch.Tensor | Jagged = draw(size, SLOTS)
    if kind != "one":
        lengths = torch.randint(0, 4, (size * SLOTS,), generator=random)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        values = draw(int(offsets[-1]))
        weights = torch.rand(len(values), generator=random) if kind == "weighted" else None
        ids = Jagged(values, offsets, weights)
    return Batch(size, {"slots": ids}, {"dense": dense}, labels)


def curve(world: World, model: str, kind: str, strategy: dict[str, Any], rows: str) -> list[float]:
    """Mean losses of 20 global batches, each rank on its slice, ids sent one batch ahead."""
    facts = Facts(num_slots=SLOTS, num_dense=DENSE, rows=ROWS if rows == "fixed" else None)
    torch.manual_seed(5)
    found = find(model)
    made = found(found.Options(**MODELS[model]), facts)
    with_rows = make_strategy(StrategySection(**strategy), world)
    with_rows.setup(made, OptimizerSection(name="adagrad", lr=0.05), seed=1)
    slices = []
    for step in range(STEPS):
        batch = global_batch(step, kind, rows)
        cuts = [batch.size * rank // world.size for rank in (world.rank, world.rank + 1)]
        slices.append(batch.rows(*cuts))
    losses = []
    for step, batch in enumerate(slices):
        if step + 1 < STEPS:
            with_rows.prefetch(slices[step + 1])
        losses.append(float(with_rows.train_step(batch)))
    return losses


def every_curve(world: World, cases: list[list[str]]) -> dict[str, list[float]]:
    return {
        ", ".join(case): curve(world, case[0], case[1], STRATEGIES[case[2]], case[3])
        for case in cases
    }


@cache
def alone(model: str, kind: str, rows: str) -> list[float]:
    return curve(World(), model, kind, {"name": "single"}, rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clicks")


@cache
def run(size: int, every_case: bool, folder: Path) -> list[dict[str, list[float]]]:
    return run_ranks(
        every_curve, size, folder / f"{size} {every_case}", ALL if every_case else QUICK
    )


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", QUICK, ids=", ".join)
def test_losses_equal_single(size: int, case: tuple[str, str, str, str], folder: Path) -> None:
    model, kind, _, rows = case
    for rank in run(size, False, folder):
        assert rank[", ".join(case)] == pytest.approx(alone(model, kind, rows), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_losses_equal_single_everywhere(size: int, folder: Path) -> None:
    for rank in run(size, True, folder):
        for case in ALL:
            model, kind, _, rows = case
            assert rank[", ".join(case)] == pytest.approx(alone(model, kind, rows), rel=1e-5), case


@pytest.mark.parametrize("kind", ["one", "lists"])
def test_what_is_compared_differs(kind: str) -> None:
    """Models, and steps that learn, have losses of their own."""
    first = [alone(model, kind, "fixed")[1] for model in MODELS]
    last = [alone(model, kind, "fixed")[-1] for model in MODELS]
    assert len(set(last)) == len(MODELS)
    assert all(a != b for a, b in zip(first, last))
