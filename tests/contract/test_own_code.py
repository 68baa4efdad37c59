"""Models and loops of one's own: the same numbers on every number of processes.

All that two processes show is shown in one start of them.
"""

import runpy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small import DATA, first_batches
from torch import Tensor, nn
from torch.nn import functional

import shoal
from shoal.distributed.world import World
from shoal.ps.server.server import Server
from shoal.runs.build import build
from shoal.runs.run import resolve

ROOT = Path(__file__).resolve().parents[2]
TWO_TOWER = str(ROOT / "examples" / "two_tower.py") + ":TwoTower"
STRATEGIES = ("ddp", "sharded", "ps")
STEPS = 40


def two_tower(world: World, strategy: str, addresses: list[str]) -> list[float]:
    """Losses of a model from a file outside the package, whose negatives are the global batch."""
    values: dict[str, Any] = {"model": TWO_TOWER, "strategy": strategy, "train.batch_size": 61}
    if addresses:
        values["strategy.ps.addresses"] = addresses
    rate = {"train.optimizer.name": "adagrad", "train.optimizer.lr": 0.05}
    parts = build(resolve(values={**DATA, **values, **rate}).config, world)
    parts.model.train()
    slices = first_batches(parts.reader, world, STEPS)
    losses = [float(parts.strategy.train_step(batch)) for batch in slices]
    parts.strategy.close()
    return losses


def gathered(world: World) -> dict[str, Any]:
    """`gather_global`: uneven slices, one of them empty, and gradients of what others need."""
    from shoal.training.strategies.base import Gathered

    everyone = torch.arange(6.0).view(3, 2)
    low, high = (0, 3) if world.rank == 0 else (3, 3)  # rank 0 has all of them
    mine = everyone[low:high].clone().requires_grad_()
    whole = Gathered(world)(mine)
    (whole.square().sum() * (world.rank + 1)).backward()
    assert mine.grad is not None
    ids = Gathered(world)(torch.tensor([world.rank], dtype=torch.int64))
    return {"whole": whole.tolist(), "grad": mine.grad.tolist(), "ids": ids.tolist()}


# ---- loops ------------------------------------------------------------------------------------


class Plain(nn.Module):
    """Someone's model, which knows nothing of Shoal: an embedding, a bag, dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(50, 8, padding_idx=0)
        self.words = nn.EmbeddingBag(30, 4, mode="mean", padding_idx=3)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
        with torch.no_grad():  # as models do: weights are touched where they are built
            self.items.weight.mul_(0.3)

    def forward(self, items: Tensor, words: Tensor) -> Tensor:
        return self.head(torch.cat([self.items(items), self.words(words)], 1)).squeeze(1)


class Grown(nn.Module):
    """Rows by name, any id."""

    def __init__(self) -> None:
        super().__init__()
        self.items = shoal.Embedding("item", dim=8)
        self.words = shoal.Embedding("word", dim=4, rows=30)
        self.head = nn.Linear(12, 1)

    def forward(self, items: Tensor, words: Tensor) -> Tensor:
        rows = torch.cat([self.items(items * 10**12), self.words(words).mean(1)], 1)
        return self.head(rows).squeeze(1)


def third_party(world: World, kind: str) -> list[float]:
    """A model of the package torchfm, as it is published; under "alone" without Shoal."""
    from torchfm.model.ffm import FieldAwareFactorizationMachineModel

    torch.manual_seed(5)
    strategy = shoal.CollectiveStrategy("native", world=world, place="row")
    if kind == "alone":
        model = FieldAwareFactorizationMachineModel([50, 30, 30, 30], 4)
        optimizer = OPTIMIZERS["adagrad"](model.parameters())
    else:
        with strategy.scope(), strategy.embedding_scope():
            model = FieldAwareFactorizationMachineModel([50, 30, 30, 30], 4)
        optimizer = strategy.optimizer(OPTIMIZERS["adagrad"](model.parameters()))
    losses = []
    for items, words, labels in strategy.split(batches(20)):
        optimizer.zero_grad()
        scores = model(torch.cat([items[:, None], words], 1))
        loss = functional.binary_cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        losses.append(strategy.mean(loss))
    return losses


def batches(count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Global batches; every seventh has one sample, so that a rank has none."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for step in range(count):
        size = 1 if step % 7 == 6 else 13
        items = torch.randint(0, 50, (size,), generator=generator)
        words = torch.randint(0, 30, (size, 3), generator=generator)
        found.append((items, words, (items % 3 == 0).float()))
    return found


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}
LOOPS = [(model, name) for model in ("plain", "grown") for name in OPTIMIZERS]


def loop_alone(name: str) -> list[float]:
    """The loop as it was before."""
    torch.manual_seed(5)
    model = Plain()
    optimizer = OPTIMIZERS[name](model.parameters())
    losses = []
    for items, words, labels in batches(30):
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(items, words), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def loop(
    world: World, kind: str, name: str, backend: str, folder: str | None = None
) -> list[float]:
    """The same under a strategy. With a folder: stopped in the middle, and begun again."""
    losses: list[float] = []
    for begun in range(1 if folder is None else 2):
        torch.manual_seed(5 + 100 * world.rank)  # rank 0's is what counts
        strategy = shoal.CollectiveStrategy(backend, world=world, place="row")
        with strategy.scope(), strategy.embedding_scope():
            model = Plain() if kind == "plain" else Grown()
        optimizer = strategy.optimizer(OPTIMIZERS[name](model.parameters()))
        some = batches(30)
        if folder is not None:
            assert strategy.restore(folder, model) == (15 if begun else None)
            some = some[15:] if begun else some[:15]
        for items, words, labels in strategy.split(some):
            optimizer.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(model(items, words), labels)
            loss.backward()
            optimizer.step()
            losses.append(strategy.mean(loss))
        if folder is not None and not begun:
            strategy.save(folder, model, 15)
    assert strategy.world_size() == strategy.world_size == world.size
    assert strategy.rank() == strategy.rank == world.rank
    return losses


def examples(world: World, folder: str) -> dict[str, Any]:
    """The examples as they stand, in this world."""
    import shoal.loop.loop as room

    found = {}
    before, room.connect = room.connect, lambda device: world  # type: ignore[assignment]
    try:
        pages = ROOT / "examples" / "pages" / "deeprec"
        variable = runpy.run_path(str(pages / "sharded_variable.py"))
        found["variable"] = variable["main"]()
        movielens = runpy.run_path(str(pages / "estimator_movielens.py"))
        for steps in ("100", "130"):  # the second goes on where the first ended
            words = ["--steps", steps, "--model_dir", folder, "--no-export"]
            found[steps] = movielens["main"](words)
        # Rows and Adagrad begin as on DeepRec's page: 0.1 is TensorFlow's.
        page = ["--steps", "60", "--init", "1e-3", "--accumulator", "0.1", "--no-export"]
        found["page"] = movielens["main"]([*page, "--model_dir", folder + "-page"])
    finally:
        room.connect = before
    return found


def everything(world: World, addresses: list[str], folder: str) -> dict[str, Any]:
    found = {name: two_tower(world, name, addresses * (name == "ps")) for name in STRATEGIES}
    loops = {f"{kind} {name}": loop(world, kind, name, "native") for kind, name in LOOPS}
    resumed = loop(world, "grown", "adagrad", "native", folder)
    shown = examples(world, folder + "-estimator")
    return {
        **{"losses": found, "gathered": gathered(world), "loops": loops, "resumed": resumed},
        "examples": shown,
    }


@pytest.fixture(scope="module")
def alone() -> list[float]:
    return two_tower(World(), "single", [])


def in_short(world: World) -> dict[str, Any]:
    """Of everything, what stands for it in the quick tests."""
    return {
        "losses": two_tower(world, "sharded", []),
        "loop": loop(world, "plain", "adagrad", "native"),
    }


@pytest.mark.slow
def test_two_processes_in_short(alone: list[float], tmp_path: Path) -> None:
    for rank in run_ranks(in_short, 2, tmp_path / "ranks"):
        assert rank["losses"] == pytest.approx(alone, rel=1e-5)
        assert rank["loop"] == pytest.approx(loop_alone("adagrad"), rel=1e-4)


@pytest.fixture(scope="module", params=[2, 3])
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    servers = [Server(index=k) for k in range(2)]
    threads = [threading.Thread(target=one.serve, daemon=True) for one in servers]
    for thread in threads:
        thread.start()
    addresses = [one.address for one in servers]
    out = tmp_path_factory.mktemp("own")
    return run_ranks(everything, request.param, out / "ranks", addresses, str(out / "checkpoints"))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_in_batch_negatives_are_those_of_the_global_batch(
    strategy: str, alone: list[float], together: list[Any]
) -> None:
    assert sum(alone[-5:]) < 0.98 * sum(alone[:5])
    for rank in together:
        assert rank["losses"][strategy] == pytest.approx(alone, rel=1e-5)


@pytest.mark.slow
def test_gradients_go_back_to_where_their_samples_are(together: list[Any]) -> None:
    everyone = torch.arange(6.0).view(3, 2)
    factor = sum(range(1, len(together) + 1))
    for number, rank in enumerate(together):
        found = rank["gathered"]
        assert found["whole"] == everyone.tolist()
        assert found["grad"] == ((2 * factor * everyone).tolist() if number == 0 else [])
        assert found["ids"] == list(range(len(together)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_process_under_a_scope_is_the_loop_alone(name: str) -> None:
    assert loop(World(), "plain", name, "native") == pytest.approx(loop_alone(name), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), LOOPS)
def test_a_loop_of_ones_own_is_the_same_on_many(kind: str, name: str, together: list[Any]) -> None:
    expected = loop_alone(name) if kind == "plain" else loop(World(), kind, name, "native")
    assert sum(expected[-3:]) < 0.8 * sum(expected[:3])
    for rank in together:
        assert rank["loops"][f"{kind} {name}"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_a_loop_goes_on_from_its_checkpoint(together: list[Any]) -> None:
    expected = loop(World(), "grown", "adagrad", "native")
    for rank in together:
        assert rank["resumed"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_examples_say_the_same_on_many(together: list[Any], tmp_path: Path) -> None:
    expected = examples(World(), str(tmp_path / "estimator"))
    assert expected["variable"][0] == 36.0
    assert expected["130"]["AUC"] > 0.7 and expected["130"]["global_step"] == 130
    for rank in together:
        assert rank["examples"]["variable"] == pytest.approx(expected["variable"], rel=1e-5)
        for steps in ("100", "130"):
            assert rank["examples"][steps] == pytest.approx(expected[steps], rel=1e-3)
        assert rank["examples"]["page"]["loss"] == pytest.approx(expected["page"]["loss"], rel=1e-6)
        assert rank["examples"]["page"]["AUC"] == pytest.approx(expected["page"]["AUC"], rel=1e-4)


@pytest.mark.slow
def test_a_published_model_is_spread_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("torchfm", reason="pip install --no-deps torchfm, for this test alone")
    expected = third_party(World(), "alone")
    assert third_party(World(), "spread") == pytest.approx(expected, rel=1e-4)
    for rank in run_ranks(third_party, 2, tmp_path / "ranks", "spread"):
        assert rank == pytest.approx(expected, rel=1e-4)
