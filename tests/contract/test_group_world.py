"""Groups of ranks that each hold all rows (strategy.groups): 50 steps are those of one process.

Exact where groups agree in each step; what is averaged where they do not, from known numbers.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from list_models import BY_ROW, on_device, set_up, slice_of, train
from ranks import run_ranks
from torch import Tensor, nn

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import Facts, Model, Output
from shoal.optimizers.row_optimizer import DEFINITIONS
from shoal.training.checkpoint.writing import Checkpoints, restore_into
from shoal.training.strategies import Strategy, make_strategy

STEPS, SAVED, RESUMED = 50, 23, 33
ADMISSION = {"admission": {"threshold": 3.0}}
# place, the section rows, whether tables grow, clipping
Case = tuple[str, dict[str, Any], bool, float | None]
CASES: dict[str, Case] = {
    "row": ("row", {}, False, None),
    "table": ("table", {}, False, None),
    "column": ("column", {}, False, None),
    "replicate": ("replicate", {}, False, None),
    "growing": ("row", {}, True, None),
    "bfloat16": ("row", {"dtype": "bfloat16"}, False, None),
    "counted": ("row", ADMISSION, True, None),
    "counted replicas": ("replicate", ADMISSION, True, None),
    "clipped": ("row", {}, False, 0.1),
}
QUICK = ["row"]


def names_of(optimizer: str, quick: bool) -> list[str]:
    left_out = ["column"] if optimizer in BY_ROW else []  # refused
    if optimizer != "adagrad":  # others divide by the size of gradients, and rounding grows
        left_out.append("clipped")
    return [name for name in (QUICK if quick else CASES) if name not in left_out]


def sharded(case: Case, groups: int) -> dict[str, Any]:
    return {"name": "sharded", "place": case[0], "groups": groups}


def set_up_case(world: World, section: dict[str, Any], case: Case, optimizer: str) -> Strategy:
    return set_up(world, section, optimizer, case[1], case[2], case[3])


def curve(world: World, section: dict[str, Any], case: Case, optimizer: str) -> list[float]:
    strategy = set_up_case(world, section, case, optimizer)
    found = train(strategy, 0, STEPS)
    strategy.close()
    return found


@cache
def alone(name: str, optimizer: str) -> list[float]:
    return curve(on_device(World()), {"name": "single"}, CASES[name], optimizer)


class Softmax(Model):
    """A catalogue as the output layer, whose rows stay with their owners."""

    def __init__(self) -> None:
        super().__init__(None, Facts())
        begin = Init("uniform", 0.5)
        items = Table("items", 4, 41, begin, padding=0, whole=True)
        self.embed = Embeddings(item=Table("one", 4, 40, begin, padding=0), out=items)
        self.layer = nn.Linear(4, 4)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, batch: Batch) -> Output:
        ids = batch.tensor("item")
        hidden = self.layer(self.embed.field("item", batch))
        return Output(self.embed.full_softmax("out", hidden, ids), batch.size)


def softmax(world: World, section: dict[str, Any]) -> list[float]:
    strategy = make_strategy(StrategySection(**{"graph": False, **section}), world)
    strategy.setup(Softmax(), OptimizerSection(name="adam", lr=0.05), seed=1)
    batches = [strategy.receive(slice_of(world, step)) for step in range(20)]
    return [float(strategy.train_step(batch)) for batch in batches]


def save(strategy: Strategy, folder: Path) -> None:
    checkpoints = Checkpoints(folder, strategy.world)
    checkpoints.save(strategy, {"step": SAVED})
    checkpoints.wait()
    strategy.world.barrier()


def go_on(world: World, folder: str, section: dict[str, Any]) -> list[float]:
    strategy = set_up_case(world, section, CASES["row"], "adagrad")
    restore_into(strategy, Checkpoints(Path(folder), world).load_step(SAVED))
    return train(strategy, SAVED, RESUMED)


def relay(world: World, groups: int, folder: str) -> list[list[float]]:
    """Go on with what one process saved, with other groups; save."""
    found = [go_on(world, f"{folder}/single", sharded(CASES["row"], n)) for n in (1, groups)]
    strategy = set_up_case(world, sharded(CASES["row"], groups), CASES["row"], "adagrad")
    train(strategy, 0, SAVED)
    save(strategy, Path(folder) / "groups")
    return [*found, train(strategy, SAVED, RESUMED)]


def on_ranks(
    world: World, groups: int, optimizers: list[str], quick: bool, folder: str
) -> dict[str, Any]:
    """Everything that ranks are asked for, in one go: processes are slow to start."""
    world = on_device(world)
    found: dict[str, Any] = {"curves": {}}
    for one in optimizers:
        for name in names_of(one, quick):
            found["curves"][f"{name} {one}"] = curve(
                world, sharded(CASES[name], groups), CASES[name], one
            )
    found["softmax"] = softmax(world, sharded(CASES["row"], groups))
    found["relay"] = relay(world, groups, folder)
    return found


@pytest.mark.parametrize(
    ("size", "groups", "optimizers", "shared_memory"),
    [
        (4, 2, ["adam"], True),
        pytest.param(4, 2, ["rowwise_adagrad"], False, marks=pytest.mark.slow),
        pytest.param(2, 2, list(DEFINITIONS), True, marks=pytest.mark.slow),
        pytest.param(4, 2, list(DEFINITIONS), True, marks=pytest.mark.slow),
        pytest.param(8, 2, list(DEFINITIONS), True, marks=pytest.mark.slow),
        pytest.param(8, 4, list(DEFINITIONS), True, marks=pytest.mark.slow),
    ],
)
def test_groups_that_agree_in_each_step_are_one_process(
    size: int, groups: int, optimizers: list[str], shared_memory: bool, tmp_path: Path
) -> None:
    quick = len(optimizers) == 1
    single = set_up_case(on_device(World()), {"name": "single"}, CASES["row"], "adagrad")
    train(single, 0, SAVED)
    save(single, tmp_path / "single")
    ranks = run_ranks(
        on_ranks,
        size,
        tmp_path,
        groups,
        optimizers,
        quick,
        str(tmp_path),
        shared_memory=shared_memory,
    )
    want = train(single, SAVED, RESUMED)
    catalogue = softmax(on_device(World()), {"name": "single"})
    for found in ranks:
        for one in optimizers:
            for name in names_of(one, quick):
                # In bfloat16 a sum in another order may round apart.
                near, least = (2e-3, 2e-4) if name == "bfloat16" else (1e-4, 1e-5)
                got = found["curves"][f"{name} {one}"]
                assert got == pytest.approx(alone(name, one), rel=near, abs=least), (name, one)
        assert found["softmax"] == pytest.approx(catalogue, rel=1e-4)
        for got in found["relay"]:
            assert got == pytest.approx(want, rel=1e-4)
    assert go_on(on_device(World()), str(tmp_path / "groups"), {"name": "single"}) == pytest.approx(
        want, rel=1e-4
    )


# ---- groups that agree every k steps ------------------------------------------------------------


class Weights(Model):
    """The sum of the looked-up rows: the gradient of a row is how often its id came."""

    def __init__(self) -> None:
        super().__init__(None, Facts())
        self.embed = Embeddings(item=Table("t", 1, 4, Init("constant", 0.0)))

    def forward(self, batch: Batch) -> Output:
        return Output(self.embed.field("item", batch).sum(), batch.size)


def averaged(world: World) -> list[Any]:
    """Rows of two groups of two ranks after each of three steps, agreed every two."""
    section = {"name": "sharded", "place": "row", "row_by": "range", "groups": 2, "groups_every": 2}
    strategy = make_strategy(StrategySection.model_validate(section), world)
    strategy.setup(Weights(), OptimizerSection(name="sgd", lr=1.0), seed=1)
    # In group 0 each rank has id 0, in group 1 each has id 3.
    mine = torch.tensor([[0], [0], [3], [3]][world.rank])
    found: list[Any] = []
    for _ in range(3):
        strategy.train_step(Batch(1, {"item": mine}))
        found.append(held(strategy))
    strategy.synchronize()
    found.append(held(strategy))
    return found


def held(strategy: Strategy) -> list[float]:
    """Every row as this rank's group has it."""
    with torch.no_grad():
        rows: Tensor = strategy.model.embed.rows("item", torch.arange(4))  # type: ignore[operator, union-attr]
    return rows.view(-1).tolist()


def test_what_groups_average(tmp_path: Path) -> None:
    """The mean gradient of id 0 over the global batch is 1/2, over group 0's samples 1."""
    for rank, found in enumerate(run_ranks(averaged, 4, tmp_path)):
        alone_, agreed, after, ended = found
        own, other = (0, 3) if rank < 2 else (3, 0)
        assert alone_[own] == pytest.approx(-1.0) and alone_[other] == 0.0
        assert agreed == pytest.approx([-1.0, 0.0, 0.0, -1.0])  # as one process has it
        assert after[own] == pytest.approx(-2.0) and after[other] == pytest.approx(-1.0)
        assert ended == pytest.approx([-1.5, 0.0, 0.0, -1.5])
