"""The loss that a run reports is the same quantity under every strategy, on any number of workers.

The learning rate is next to nothing, so that every sample has the loss that it has on one process.
"""

import json
import re
from contextlib import ExitStack
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from click_model import click_config
from ps_cluster import serving
from ranks import run_ranks

from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.training.run_folder import RunFolder, start_logging
from shoal.training.trainer import Trainer

SAMPLES = 2400
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"name": "ddp"},
    "sharded": {"name": "sharded"},
    "sync": {"name": "ps", "ps": {"mode": "sync"}},
    "async": {"name": "ps", "ps": {"mode": "async"}},
    "geo": {"name": "ps", "ps": {"mode": "geo", "geo_step": 3}},
}
# Samples of a batch -> how far a loss may be away. The last batch of 70 has 20 samples: workers
# that update separately count samples, one process counts batches.
NEAR = {100: 1e-5, 70: 5e-3}
CASES = list(product(STRATEGIES, NEAR))
EPOCH = re.compile(r"epoch 0 training \[time: .*, train loss: ([\d.]+)\]")
STEPS = re.compile(r"epoch 0 step \d+ \[loss: ([\d.]+),")


def train(world: World, place: str, strategy: dict[str, Any], batch: int) -> None:
    """One epoch; the folder keeps what it reports."""
    config = click_config(
        model="DNN",
        model__dim=4,
        model__layers=[8],
        model__initial_range=1.0,  # samples differ in their losses
        data__clicks__synthetic__samples=SAMPLES,
        strategy=strategy,
        train__batch_size=batch,
        train__epochs=1,
        train__eval_every=0,
        train__print_every=4,
        train__optimizer__name="sgd",
        train__optimizer__lr=1e-12,
    )
    folder = RunFolder(place)
    if world.is_main:
        folder.create(resume=False)
    start_logging("INFO", world.rank, folder.path / "train.log" if world.is_main else None)
    parts = build(config, world)
    given = parts.strategy, parts.reader, parts.evaluator, folder, parts.fingerprint
    Trainer(parts.config, *given).fit(0.0)
    parts.strategy.close()


def every_case(world: World, place: str, addresses: dict[str, list[str]]) -> None:
    for name, batch in CASES:
        strategy, folder = STRATEGIES[name], f"{place}/{name} {batch}"
        if "ps" in strategy:
            servers = {**strategy["ps"], "addresses": addresses[f"{name} {batch}"]}
            strategy = {**strategy, "ps": servers}
        train(world, folder, strategy, batch)


@cache
def run(workers: int, place: Path) -> Path:
    """A folder with a run of each case."""
    made, addresses = place / str(workers), {}
    with ExitStack() as stack:
        for case in (f"{name} {n}" for name, n in CASES if "ps" in STRATEGIES[name]):
            servers = stack.enter_context(serving(folder=made / case / "checkpoints"))
            addresses[case] = servers.addresses
        run_ranks(every_case, workers, made, str(made), addresses)
    return made


@cache
def alone(batch: int, place: Path) -> tuple[float, float, float]:
    train(World(), str(place / f"alone {batch}"), {"name": "single"}, batch)
    return reported(place / f"alone {batch}")


def reported(folder: Path) -> tuple[float, float, float]:
    """The loss of an epoch in the log and in metrics.jsonl; the mean of those every few steps."""
    text = (folder / "train.log").read_text()
    (line,) = map(json.loads, (folder / "metrics.jsonl").open())
    (epoch,) = EPOCH.findall(text)
    return float(epoch), line["loss"], mean(map(float, STEPS.findall(text)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reported")


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "batch"), CASES)
def test_a_loss_is_that_of_one_process(name: str, batch: int, workers: int, place: Path) -> None:
    expected, found = alone(batch, place), reported(run(workers, place) / f"{name} {batch}")
    assert expected[0] == pytest.approx(expected[1] * -(-SAMPLES // batch), abs=1e-4)
    assert found[:2] == pytest.approx(expected[:2], rel=NEAR[batch])
    assert found[2] == pytest.approx(expected[2], rel=0.02)
