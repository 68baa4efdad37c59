"""Ids and gradients of any strides, dtypes and shapes train, or are refused, as on one process.

A layout joins by its name in a list. Ranks start once for each strategy and run every case.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from ps_cluster import serving
from ranks import run_ranks
from torch import Tensor

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import Facts, Model, Output
from shoal.training.strategies import make_strategy

ROWS, STEPS = 40, 4
IDS: dict[str, Callable[[Tensor], Tensor]] = {  # the batch's [size, 4] -> what a model looks up
    "contiguous": lambda x: x.contiguous(),
    "as the batch has them": lambda x: x,
    "one column": lambda x: x[:, 0],
    "transposed": lambda x: x.T,
    "from the second column": lambda x: x[:, 1:],
    "expanded": lambda x: x[:, :1].expand(-1, 3),
    "three axes": lambda x: x.unflatten(1, (2, 2)).transpose(0, 2),
    "no ids": lambda x: x[:, :0],
    "int32": lambda x: x.int(),
    "uint8": lambda x: x[:, 0].byte(),
    "bool": lambda x: x > 3,
    "float32": lambda x: x.float(),
}
REFUSED = {"int32", "uint8", "bool", "float32"}
GRADIENTS: list[Callable[[Tensor], Tensor]] = [  # rows [..., dim] -> a loss; backward leaves
    lambda rows: rows.sum(),  # one value, expanded
    lambda rows: rows.sum(-1).square().sum(),  # one value a row, expanded
    lambda rows: rows[..., -1].exp().sum(),  # a column and zeros
    lambda rows: rows.movedim(-1, 0).contiguous().exp().sum(),  # transposed
    lambda rows: rows.double().square().sum().float(),  # float64, made float32 on the way
]
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"name": "ddp"},
    "ddp over Gloo": {"name": "ddp"},
    "sharded": {"name": "sharded", "place": "row"},
    "sync": {"name": "ps"},
    # Workers have their own batches: one alone, which waits for each step, equals single.
    "async": {"name": "ps"},
    "geo": {"name": "ps"},
}


class Laid(Model):
    """Each gradient of rows of a fixed and of growing tables, among those of the batch and not."""

    def __init__(self, ids: Callable[[Tensor], Tensor]):
        super().__init__(None, Facts())
        self.ids = ids
        rows = {"x": ROWS, "fixed": ROWS, "grows": None, "lists": None}
        dims = {"x": 3, "fixed": 1, "grows": 1, "lists": 3}
        self.embed = Embeddings({n: Table(n, dims[n], rows[n], Init("uniform", 0.5)) for n in rows})

    def forward(self, batch: Batch) -> Output:
        ids = self.ids(batch.tensor("x"))
        terms = []
        for grads in GRADIENTS:
            rows = [self.embed.rows(name, ids) for name in ("x", "fixed", "grows")]
            rows += [self.embed.field("x", batch), self.embed.pooled("lists", batch, "mean")]
            terms += [grads(one) for one in rows]
        return Output(torch.stack(terms).sum(), batch.size)


def strided(x: Tensor) -> Tensor:
    """The same numbers, with others between them."""
    return torch.stack([x, x], -1)[..., 0]


def slice_of(step: int, world: World) -> Batch:
    """A rank's samples, nothing of which is contiguous; in one step the others have none."""
    random = torch.Generator().manual_seed(step)
    size = 1 if step == 2 else 9
    start, stop = world.slice(size)
    x = torch.randint(0, ROWS, (size, 4), generator=random)[start:stop]
    values = torch.randint(0, 1 << 40, (size, 2), generator=random)[start:stop].reshape(-1)
    weights = torch.rand(size, 2, generator=random)[start:stop].reshape(-1)
    lists = (values, torch.arange(0, len(values) + 1, 2), weights)
    ids = {"x": strided(x), "lists": Jagged(*map(strided, lists))}
    return Batch(stop - start, ids, first=start)


def train(world: World, section: dict[str, Any], case: str) -> list[float] | str:
    """Losses of some steps, or what they are refused with."""
    strategy = make_strategy(StrategySection(**section), world)
    strategy.setup(Laid(IDS[case]), OptimizerSection(name="adagrad", lr=0.1), seed=1)
    slices, found = [slice_of(step, world) for step in range(STEPS)], []
    try:
        for batch, following in zip(slices, [*slices[1:], None]):
            if following is not None and section["name"] != "ps":
                strategy.prefetch(following)
            found.append(float(strategy.train_step(batch)))
            strategy.synchronize()
        return found
    except ValueError as refused:
        return str(refused)
    finally:
        strategy.close()


def every_case(world: World, name: str, addresses: list[list[str]]) -> dict[str, Any]:
    found = {}
    for case, servers in zip(IDS, addresses):
        section = dict(STRATEGIES[name])
        if servers:
            section["ps"] = {"mode": name, "addresses": servers, "geo_step": 1}
        found[case] = train(world, section, case)
    return found


@cache
def run(name: str, folder: Path) -> list[dict[str, Any]]:
    """What each rank found: losses, or a refusal, by case."""
    with ExitStack() as stack:
        served = STRATEGIES[name]["name"] == "ps"
        addresses = [stack.enter_context(serving()).addresses if served else [] for _ in IDS]
        if name in ("async", "geo"):
            return [every_case(World(), name, addresses)]
        shared = name != "ddp over Gloo"
        return run_ranks(every_case, 2, folder / name, name, addresses, shared_memory=shared)


@cache
def alone(case: str) -> list[float] | str:
    return train(World(), {"name": "single"}, case)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


@pytest.mark.parametrize(("name", "case"), list(product(STRATEGIES, IDS)))
def test_layouts_train_as_on_one_process(name: str, case: str, folder: Path) -> None:
    for rank in run(name, folder):
        if case in REFUSED:
            assert rank[case] == alone(case)
            assert "they must be torch.int64 (ids.long())" in rank[case]
        else:
            assert rank[case] == pytest.approx(alone(case), rel=1e-5)


def test_what_is_compared_learns() -> None:
    """Strides alone change no bit, and other ids have other losses."""
    trained = {case: alone(case) for case in IDS if case not in REFUSED}
    assert trained["as the batch has them"] == trained["contiguous"]
    for case in trained:
        same_ids = case in ("contiguous", "as the batch has them", "transposed", "three axes")
        near = pytest.approx(trained["contiguous"], rel=1e-5)
        assert (trained[case] == near) == same_ids, case
    assert all(one[0] > one[-1] for one in trained.values())
