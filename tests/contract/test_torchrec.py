"""Sharded tables train as TorchRec's do (the oracle of tests/helpers/torchrec_rows.py)."""

import json
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from click_batches import global_batch
from click_batches import make_model as make_click_model
from ranks import run_ranks
from services import pull, push
from small import first_batches, small_config
from triton_there import ask_for_interpreter

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import Model, Output
from shoal.runs.build import build
from shoal.training.checkpoint.snapshot import restore_into, take_snapshot
from shoal.training.strategies import Strategy, make_strategy

HAVE = all(find_spec(name) is not None for name in ("torchrec", "fbgemm_gpu"))
if HAVE:
    # It imports Triton, whose interpreter must be asked for before: tests of kernels may follow.
    with pytest.MonkeyPatch.context() as patch:
        ask_for_interpreter(patch)
        import torchrec_rows
needs_torchrec = pytest.mark.skipif(not HAVE, reason="TorchRec and FBGEMM are not installed")

STEPS = 20
BACKENDS: dict[str, dict[str, Any]] = {
    "native": {"name": "sharded", "place": "row"},
    "torchrec": {"name": "torchrec"},
}
# DNN's lists repeat ids, and every seventh of its batches is one sample, so that a rank has none;
# BPR of batch size 1 leaves one rank empty all the time.
MODELS: dict[str, dict[str, Any]] = {
    "BPR": {"model": "BPR", "train__batch_size": 61},
    "BPR alone": {"model": "BPR", "train__batch_size": 1},
    "SASRec": {"model": "SASRec", "train__batch_size": 13},  # softmax over all rows
    "LightGCN": {"model": "LightGCN", "train__batch_size": 61},  # reads whole tables
    "DNN": {},
    "DeepFM": {},  # tables of two widths, neither of which FBGEMM would take as it is
}
LRS = {"sgd": 0.5, "adagrad": 0.01}
CASES = [("BPR", "sgd"), ("DNN", "sgd"), *((model, "adagrad") for model in MODELS)]


@pytest.fixture(scope="module", autouse=True)
def strategy_of_this_file() -> Iterator[None]:
    """Configs may name the oracle while these tests run; ranks let it in themselves."""
    if HAVE:
        torchrec_rows.let_configs_name_it()
    yield
    if HAVE:
        torchrec_rows.forget_it()


def click_slices(world: World) -> list[Batch]:
    """This rank's slices of global batches for a click model."""
    found = []
    for step in range(STEPS):
        batch = global_batch(step, "lists", "fixed")
        found.append(batch.rows(*world.slice(batch.size)))
    return found


def prepared(
    world: World, model: str, optimizer: str, backend: str
) -> tuple[Strategy, list[Batch], Any]:
    """A strategy with its model, this rank's slices of some batches, and the evaluator if any."""
    torchrec_rows.let_configs_name_it()
    section = OptimizerSection(name=optimizer, lr=LRS[optimizer])  # type: ignore[arg-type]
    values = MODELS[model]
    if not values:
        strategy = make_strategy(StrategySection(**BACKENDS[backend]), world)
        strategy.setup(make_click_model(model), section, seed=1)
        return strategy, click_slices(world), None
    values = {**values, **{f"strategy__{k}": v for k, v in BACKENDS[backend].items()}}
    values |= {"train__optimizer__name": optimizer, "train__optimizer__lr": LRS[optimizer]}
    parts = build(small_config(**values), world)
    parts.model.train()
    return parts.strategy, list(first_batches(parts.reader, world, STEPS)), parts.evaluator


def rows_of(strategy: Strategy) -> dict[str, Any]:
    """Every table's rows and state, flat; on rank 0."""
    found: dict[str, Any] = {}
    for name, store in strategy.stores.items():
        chunks = list(store.export(chunk_rows=50))
        if not chunks:
            continue
        found[f"{name} ids"] = torch.cat([chunk.ids for chunk in chunks]).tolist()
        found[name] = torch.cat([chunk.values for chunk in chunks]).view(-1).tolist()
        for key in chunks[0].state:
            state = torch.cat([chunk.state[key] for chunk in chunks])
            found[f"{name} {key}"] = state.view(-1).tolist()
    return found


def trained(world: World, model: str, optimizer: str, backend: str) -> dict[str, Any]:
    strategy, slices, evaluator = prepared(world, model, optimizer, backend)
    losses = [float(strategy.train_step(batch)) for batch in slices]
    found = {"losses": losses, **rows_of(strategy)}
    if model == "BPR":
        found["metrics"] = evaluator.evaluate(strategy.model, "test")
    return found


def relay(world: World) -> list[float]:
    """Losses of a run that a checkpoint hands to the other side twice."""
    losses: list[float] = []
    state = None
    for number, backend in enumerate(["native", "torchrec", "native"]):
        strategy, slices, _ = prepared(world, "DeepFM", "adagrad", backend)
        if state is not None:
            restore_into(strategy, state)
        part = slices[7 * number : 7 * number + 7]
        losses += [float(strategy.train_step(batch)) for batch in part]
        state = take_snapshot(strategy, {})  # all ranks; rank 0 has the files
        names = json.dumps(list(state.files)).encode() if world.is_main else None
        names = json.loads(world.broadcast_bytes(names))
        state.files = state.files if world.is_main else dict.fromkeys(names)
    return losses


class Weighted(Model):
    """Its loss is the rows times the batch's weights, so gradients can be told by hand."""

    def __init__(self, rows: int | None = 7) -> None:
        torch.nn.Module.__init__(self)
        ones = Init("constant", 1.0)
        many, few = Table("my.many", 4, rows, ones, padding=0), Table("few", 3, 1, ones)
        self.embed = Embeddings(a=many, b=many, few=few)

    def forward(self, batch: Batch) -> Output:
        rows = self.embed(batch)
        loss = sum((rows[f].sum(-1) * batch.dense[f]).sum() for f in rows)
        return Output(loss, batch.size)  # type: ignore[arg-type]


def by_hand(world: World) -> dict[str, Any]:
    """Two steps of Adagrad at 0.5 and 0.25; both fields read the same table."""
    torchrec_rows.let_configs_name_it()
    strategy = make_strategy(StrategySection(**BACKENDS["torchrec"]), world)
    strategy.setup(Weighted(), OptimizerSection(name="adagrad", lr=9.0), seed=1)
    strategy.model.train()
    ids = {"a": [3, 3, 0, 6], "b": [6, 5, 3, 1], "few": [0, 0, 0, 0]}
    weights = {"a": [1.0, 2.0, 9.0, 1.0], "b": [2.0, 4.0, 1.0, -8.0], "few": [1.0, 1.0, 1.0, 1.0]}
    whole = Batch(
        4,
        {name: torch.tensor(values) for name, values in ids.items()},
        {name: torch.tensor(values) for name, values in weights.items()},
    )
    mine = whole.rows(*world.slice(4))
    for lr in (0.5, 0.25):
        strategy.train_step(mine, lr)
    step = {name: store.step for name, store in strategy.stores.items()}
    ids_read = torch.tensor([3, 0, 6])
    pulled = pull(strategy.rows, "my.many", ids_read)[:, 0].tolist()
    push(strategy.rows, "few", torch.zeros(2, dtype=torch.int64), torch.ones(2, 3), 0.0)
    rows, before = rows_of(strategy), world.bytes_sent
    strategy.train_step(mine, 0.0)  # the rate of the push: another one would fetch rows again
    sent = world.bytes_sent - before
    return {**rows, "step": step, "pulled": pulled, "sent": sent}


def everything(world: World) -> dict[str, Any]:
    found: dict[str, Any] = {"by hand": by_hand(world), "relay": relay(world)}
    for model, optimizer in CASES:
        for backend in BACKENDS:
            key = f"{model} {optimizer} {backend}"
            found[key] = trained(world, model, optimizer, backend)
    return found


def run(size: int, folder: Path) -> list[dict[str, Any]]:
    """What every rank found; run once, a failure likewise."""
    found = run_once(size, folder)
    if isinstance(found, Exception):
        raise found
    return found


@cache
def run_once(size: int, folder: Path) -> list[dict[str, Any]] | Exception:
    world = World()
    try:
        return [everything(world)] if size == 1 else run_ranks(everything, size, folder)
    except Exception as error:
        return error
    finally:
        world.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torchrec")


SIZES = pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])


@needs_torchrec
@SIZES
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_losses_rows_and_state_equal_those_of_torchrec(
    size: int, case: tuple[str, str], folder: Path
) -> None:
    for number, rank in enumerate(run(size, folder)):
        native, torchrec = (rank[f"{' '.join(case)} {backend}"] for backend in BACKENDS)
        assert torchrec["losses"] == pytest.approx(native["losses"], rel=1e-5)
        assert len(set(native["losses"])) == STEPS
        assert torchrec.keys() == native.keys()
        assert (len(native) > 1) == (number == 0 or case[0] == "BPR")
        for key in native:
            assert torchrec[key] == pytest.approx(native[key], rel=1e-5, abs=1e-7), key


@needs_torchrec
@SIZES
def test_gradients_are_those_of_the_mean_loss_summed_before_the_optimizer(
    size: int, folder: Path
) -> None:
    ranks = run(size, folder)
    found = ranks[0]["by hand"]
    # Gradients: weights of an id over both fields, divided by 4 samples. 0 is padding.
    grads = {1: -2.0, 3: 1.0, 5: 1.0, 6: 0.75}
    for id_ in range(7):
        grad, row, total = grads.get(id_, 0.0), 0.0 if id_ == 0 else 1.0, 0.0
        for lr in (0.5, 0.25):
            total += grad * grad
            row -= lr * grad / total**0.5 if grad else 0.0
        assert found["my.many"][4 * id_ : 4 * id_ + 4] == pytest.approx([row] * 4, rel=1e-6)
        assert found["my.many sum"][4 * id_ : 4 * id_ + 4] == pytest.approx([total] * 4, rel=1e-6)
    assert found["my.many ids"] == list(range(7))
    # One row, and ranks that have none: 4 weights of 1 over 4 samples; then size pushes of 2 ones.
    assert found["few"] == pytest.approx([1 - 0.5 - 0.25 / 2**0.5] * 3, rel=1e-6)
    assert found["few sum"] == pytest.approx([2.0 + (2 * size) ** 2] * 3, rel=1e-6)
    if size == 2:
        # Rank 0 has ids 0 to 3 and the one row of `few`. It asks for 3, 5 and 6, two of them of
        # rank 1, which asks for 6, 3, 1 and that row: three of rank 0. Each is an id, a row and a
        # gradient of 4 floats; loss and count of each rank are 2 floats more.
        assert sum(rank["by hand"]["sent"] for rank in ranks) == 5 * (8 + 16 + 16) + 2 * 8
    third, sixth = found["my.many"][12], found["my.many"][24]
    for rank in ranks:
        assert rank["by hand"]["step"] == {"my.many": 2, "few": 2}
        assert rank["by hand"]["pulled"] == [third, 0.0, sixth]


@needs_torchrec
@SIZES
def test_checkpoints_go_to_torchrec_and_back(size: int, folder: Path) -> None:
    for rank in run(size, folder):
        expected = rank["DeepFM adagrad native"]["losses"]
        assert rank["relay"] == pytest.approx(expected, rel=1e-5)


@needs_torchrec
def test_an_id_without_a_row_is_refused() -> None:
    world = World()
    strategy = make_strategy(StrategySection(**BACKENDS["torchrec"]), world)
    strategy.setup(Weighted(), OptimizerSection(name="sgd"), seed=1)
    with pytest.raises(ValueError, match=r"table 'my.many' has no row 7"):
        pull(strategy.rows, "my.many", torch.tensor([1, 7]))
    world.close()
