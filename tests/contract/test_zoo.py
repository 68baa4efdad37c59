"""One list of demands on every model that ranks: see tests/zoo_models.py, where a new one joins.

- a batch may be cut anywhere: the losses of its parts add up, with dropout, and a part may be empty
- sharded, ddp and parameter servers train as one process does
- scores of a block of items are those among all
- it learns: on synthetic data, where taste decides, each beats popularity by far
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from zoo_models import ACROSS, DATA, MODELS, zoo_config

import shoal
import shoal.runs.build as building
from shoal.config.schema import Config, DataSection
from shoal.data.dataset import Dataset
from shoal.distributed.world import World
from shoal.models import MODELS as NAMES
from shoal.models import find
from shoal.ps.server.server import Server
from shoal.runs.build import build
from shoal.runs.parts import Parts
from shoal.runs.trained_run import Trained
from shoal.training.steps import seed_step

TRAINED = [name for name in MODELS if find(name.split()[0]).trainable]
STEPS = 4
SLOW = pytest.mark.slow


def each(names: list[str]) -> list[Any]:
    """Of a model with several lines the first is quick, the others are for when there is time."""
    return [pytest.param(name, marks=SLOW) if " " in name else name for name in names]


@pytest.fixture(autouse=True, scope="module")
def data_made_once() -> Iterator[None]:
    """The same synthetic data for all: it is what takes longest to make."""
    made: dict[str, Dataset] = {}
    load = building.load_dataset

    def once(section: DataSection, seed: int, source: str) -> Dataset:
        key = f"{section.model_dump_json()} {seed}"
        if key not in made:
            made[key] = load(section, seed, source)
        return made[key]

    building.load_dataset = once
    yield
    building.load_dataset = load


def made(name: str, world: World, **values: Any) -> tuple[Parts, Config]:
    config = zoo_config(name, **values)
    parts = build(config, world)
    parts.model.solve()
    parts.model.train()
    return parts, config


def curve(name: str, world: World, **values: Any) -> list[float]:
    """Losses of the first steps, with dropout."""
    parts, config = made(name, world, **values)
    found: list[float] = []
    for batch in parts.reader.batches(0, world.rank, world.size):
        seed_step(config.run.seed, len(found), world.rank, world.device)
        found.append(float(parts.strategy.train_step(batch)))
        if len(found) == STEPS:
            break
    parts.strategy.synchronize()
    parts.strategy.close()
    return found


def test_every_model_is_here() -> None:
    ranking = {name for name in NAMES if find(name).kind != "clicks"}
    assert {name.split()[0] for name in MODELS} == ranking


@pytest.mark.parametrize("name", each([name for name in TRAINED if name not in ACROSS]))
def test_a_batch_may_be_cut(name: str) -> None:
    parts, _ = made(name, World())
    found = []
    for slices in ([(0, 1)], [(0, 100), (0, 3), (1, 3), (2, 3)]):  # the first of 100 is empty
        loss = count = 0.0
        parts.model.zero_grad()
        seed_step(1, 0, 0, torch.device("cpu"))
        for rank, size in slices:
            output = parts.strategy.forward(next(parts.reader.batches(0, rank, size)))
            output.loss.backward()
            loss, count = loss + float(output.loss.detach()), count + float(output.count)
        grads = {key: p.grad for key, p in parts.model.named_parameters() if p.grad is not None}
        found.append((loss, count, grads))
    assert found[0][1] == found[1][1] > 0
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    torch.testing.assert_close(found[0][2], found[1][2], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", each(TRAINED))
def test_sharded_by_one_process_equals_single(name: str) -> None:
    alone = curve(name, World())
    sharded = curve(name, World(), strategy__name="sharded", strategy__place="row")
    assert sharded == pytest.approx(alone, rel=1e-4)
    assert len(set(alone)) == STEPS


@pytest.mark.parametrize("name", each(list(MODELS)))
def test_scores_of_a_block_are_those_among_all(name: str) -> None:
    parts, _ = made(name, World())
    parts.model.eval()
    users = np.arange(1, 6)
    _, histories = parts.evaluator._prepared("test")
    batch = parts.evaluator.query(users, histories)
    items = torch.arange(parts.dataset.num_items)
    with torch.inference_mode():
        whole = parts.model.score(batch, items)
        assert whole.shape == (5, len(items)) and bool(whole.isfinite().all())
        block = parts.model.score(batch, items[9:21])
        torch.testing.assert_close(block, whole[:, 9:21])
        lists = torch.tensor([[3, 9, 1], [4, 4, 2], [1, 2, 3], [7, 8, 9], [40, 30, 20]])
        torch.testing.assert_close(parts.model.score(batch, lists), whole.gather(1, lists))
        nobody = parts.evaluator.query(users[:0].copy(), histories)
        assert parts.model.score(nobody, items).shape == (0, len(items))


# --- several processes: one start runs every model


def curves(world: World, addresses: dict[str, list[str]]) -> dict[str, list[float]]:
    found = {}
    for name in TRAINED:
        found[f"ddp {name}"] = curve(name, world, strategy__name="ddp")
        place = {"strategy__name": "sharded", "strategy__place": "row"}
        found[f"sharded {name}"] = curve(name, world, **place)
        servers = {"strategy__name": "ps", "strategy__ps__addresses": addresses[name]}
        found[f"ps {name}"] = curve(name, world, **servers)
    return found


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[float]]]:
    servers = {name: [Server(index=0)] for name in TRAINED}
    threads = [threading.Thread(target=some[0].serve, daemon=True) for some in servers.values()]
    for thread in threads:
        thread.start()
    addresses = {name: [one.address for one in some] for name, some in servers.items()}
    folder: Path = tmp_path_factory.mktemp("zoo") / "out"
    return run_ranks(curves, 2, folder, addresses)


@SLOW
@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("strategy", ["ddp", "sharded", "ps"])
def test_two_processes_train_as_one(strategy: str, name: str, together: list) -> None:
    alone = curve(name, World())
    for rank in together:
        assert rank[f"{strategy} {name}"] == pytest.approx(alone, rel=1e-4)


# --- ways to train that change no number, or the same everywhere


@pytest.mark.parametrize("name", ["SASRec", "BERT4Rec", "HSTU"])
def test_layers_computed_again_change_nothing(name: str) -> None:
    assert curve(name, World(), train__recompute=True) == curve(name, World())


@pytest.mark.parametrize("name", ["SASRec sampled", "STAMP", "HSTU", "FMLP"])
def test_a_bucketed_batch_may_be_cut(name: str) -> None:
    parts, _ = made(name, World(), train__bucket=True)
    ids = "history", "target"
    whole, seen = list(parts.reader.batches(0)), set()
    for number, batch in enumerate(whole):
        assert batch.tensor("history").shape[1] == (batch.tensor("history") > 0).sum(1).max()
        slices = [next(parts.reader.batches(0, rank, 3, number)) for rank in range(3)]
        for name in ids:
            joined = torch.cat([one.tensor(name) for one in slices])
            assert torch.equal(joined, batch.tensor(name))
        seen |= {tuple(row) for row in batch.tensor("history").tolist()}
    widths = [batch.tensor("history").shape[1] for batch in whole]
    assert len(set(widths)) > 2 and widths != sorted(widths)
    parts.reader.bucket = False
    plain = {
        tuple(row) for one in parts.reader.batches(0) for row in one.tensor("history").tolist()
    }
    assert {tuple(x for x in row if x) for row in plain} == {tuple(x for x in r if x) for r in seen}
    seed_step(1, 0, 0, torch.device("cpu"))
    parts.reader.bucket = True
    assert float(parts.strategy.train_step(next(parts.reader.batches(0)))) > 0


def test_what_a_model_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train\.recompute.*GRU4Rec has no layers"):
        made("GRU4Rec", World(), train__recompute=True)
    with pytest.raises(ValueError, match=r"train\.bucket.*BERT4Rec does not read"):
        made("BERT4Rec", World(), train__bucket=True)


def test_averages_are_evaluated_and_restored_when_a_run_resumes(tmp_path: Path) -> None:
    values = {**DATA, **MODELS["SASRec"], "train.epochs": 2, "eval.repeatable": False}
    del values["data.name"]
    found = {}
    for name, ema in (("plain", None), ("averaged", 0.9)):
        given = {**values, "train.ema": ema, "run.output": str(tmp_path / name)}
        found[name] = shoal.run(model="SASRec", dataset="synthetic", config_dict=given)
    assert found["plain"]["test"] != found["averaged"]["test"]
    trained = Trained(tmp_path / "averaged")
    assert trained.evaluate()["test"] == pytest.approx(found["averaged"]["test"])
    averages = trained.model.averages
    evaluated = [one.clone() for one in averages.own]
    trained.model.train()  # now the parameters are those that the optimizer made
    assert not torch.equal(averages.own[0], evaluated[0])
    assert torch.equal(averages.average_0, evaluated[0])
    before, steps = evaluated[0].clone(), int(averages.steps)
    decay = min(0.9, (1 + steps) / (10 + steps))
    averages.update()
    expected = decay * before + (1 - decay) * averages.own[0].detach()
    torch.testing.assert_close(averages.average_0, expected)
    with pytest.raises(ValueError, match=r"train\.ema.*BPR has none"):
        made("BPR", World(), train__ema=0.9)
