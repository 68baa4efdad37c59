"""strategy.wire_dtype: what travels is rounded as documented, ids, counts and kept rows are not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from list_models import on_device, set_up, train
from ranks import run_ranks

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.placements.row_requests import WirePrecision
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import Facts, Model, Output
from shoal.training.strategies import make_strategy

BFLOAT16, FLOAT16 = WirePrecision(torch.bfloat16), WirePrecision(torch.float16)
ROW = 1.00390625  # 1 + 2^-8: between two values of bfloat16, as float16 has it


def passed(precision: WirePrecision, values: torch.Tensor) -> torch.Tensor:
    return precision.widen(precision.narrow(values))


def test_known_values() -> None:
    values = torch.tensor([ROW, 257.0, 0.1, -3.0e38])
    got = passed(BFLOAT16, values).tolist()
    assert got[:2] == [1.0, 256.0]  # ties go to the even one
    assert got[2:] == pytest.approx([0.10009765625, -3.0e38], rel=2**-8)
    assert passed(FLOAT16, torch.tensor([ROW, 257.0, 2049.0])).tolist() == [ROW, 257.0, 2048.0]
    assert passed(WirePrecision(), values).tolist() == values.tolist()


@pytest.mark.parametrize(("precision", "share"), [(BFLOAT16, 256), (FLOAT16, 2048)])
def test_the_error_is_within_what_the_documentation_says(
    precision: WirePrecision, share: int
) -> None:
    random = torch.Generator().manual_seed(1)
    size = torch.logspace(-12, 4, 4000)
    values = torch.randn(4000, generator=random) * size
    off = (passed(precision, values) - values).abs()
    bound = values.abs() / share
    if precision is FLOAT16:
        bound = bound.clamp(min=3e-8)
    assert bool((off <= bound).all()) and bool((off > bound / 4).any())


def test_a_value_that_float16_does_not_have_is_refused() -> None:
    assert passed(FLOAT16, torch.tensor([65504.0])).tolist() == [65504.0]
    with pytest.raises(ValueError, match=r"holds 70000: set strategy\.wire_dtype=bfloat16"):
        FLOAT16.narrow(torch.tensor([[1.0, -70000.0]]))


def test_counts_are_exact() -> None:
    counts = torch.tensor([[257.0, 16777215.0], [0.1, 3.0]])
    for precision in (BFLOAT16, FLOAT16, WirePrecision()):
        flat = torch.cat([precision.narrow(torch.ones(1)), precision.exact(counts)])
        assert torch.equal(precision.from_exact(flat[1:]).view(2, 2), counts)


class Sums(Model):
    """257 times the sum of a list's rows; keeps what it read."""

    def __init__(self) -> None:
        super().__init__(None, Facts())
        self.embed = Embeddings(tags=Table("t", 2, 8, Init("constant", ROW)))

    def forward(self, batch: Batch) -> Output:
        self.read = self.embed.pooled("tags", batch)
        return Output(257.0 * self.read.sum(), 1)


def known(world: World, exchange: str) -> dict[str, Any]:
    """Rank 0 has a list of ids 1 and 6, rank 1 a list of id 2: owners are ranks 0, 1 and 0."""
    section = {"name": "sharded", "place": "row", "row_by": "range", "wire_dtype": exchange}
    strategy = make_strategy(StrategySection.model_validate(section), world)
    model = Sums()
    strategy.setup(model, OptimizerSection(name="sgd", lr=1.0), seed=1)
    ids = [[1, 6], [2]][world.rank]
    lists = Jagged(torch.tensor(ids), torch.tensor([0, len(ids)]))
    strategy.train_step(Batch(1, {"tags": lists}))
    rows = [one.values[:, 0].tolist() for one in strategy.stores["t"].export()]
    return {"read": model.read[:, 0].tolist(), "rows": rows}


def on_ranks(world: World) -> dict[str, Any]:
    found: dict[str, Any] = {name: known(world, name) for name in ("float32", "bfloat16")}
    section = {"name": "sharded", "place": "row", "wire_dtype": "bfloat16"}
    found["losses"] = train(set_up(on_device(world), section, "adagrad"), 0, 20)
    return found


def test_rows_and_gradients_travel_rounded_and_are_kept_exact(tmp_path: Path) -> None:
    """Of a step of 1/2 (two ranks count one each) times 257 or, rounded, 256."""
    ranks = run_ranks(on_ranks, 2, tmp_path)
    assert [rank["float32"]["read"] for rank in ranks] == [[2 * ROW], [ROW]]
    assert [rank["bfloat16"]["read"] for rank in ranks] == [[2.0], [1.0]]  # of a rank itself, too
    for name, gradient in (("float32", 257.0), ("bfloat16", 256.0)):
        stepped = ROW - gradient / 2
        want = [ROW, stepped, stepped, ROW, ROW, ROW, stepped, ROW]
        assert ranks[0][name]["rows"] == [pytest.approx(want, abs=1e-5)]
    alone = train(set_up(on_device(World()), {"name": "single"}, "adagrad"), 0, 20)
    for rank in ranks:
        assert rank["losses"] != alone
        assert rank["losses"] == pytest.approx(alone, rel=0.02, abs=1e-3)
