"""Click models train under every strategy as one process does, on ids and on lists of ids."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click_batches import MODELS, losses, make_model
from ranks import run_ranks

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.distributed.world import World
from shoal.training.strategies import make_strategy

STEPS = 20
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


def curve(world: World, model: str, kind: str, strategy: dict[str, Any], rows: str) -> list[float]:
    """Mean losses of 20 global batches, each rank on its slice, ids sent one batch ahead."""
    with_rows = make_strategy(StrategySection(**strategy), world)
    with_rows.setup(make_model(model, rows), OptimizerSection(name="adagrad", lr=0.05), seed=1)
    return losses(with_rows, STEPS, kind, rows)


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
