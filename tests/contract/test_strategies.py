"""Every strategy trains as one process does: same losses, same metrics, same rows.

A model or a placement joins by its name in a list. Starting processes is what costs, so one start
per world size runs everything.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small import VECTORS, first_batches, small_config

import shoal.training.evaluation.evaluator
from shoal.config.schema import Config
from shoal.data.reader import one_ahead
from shoal.distributed.world import World
from shoal.embedding.placements import replicated
from shoal.runs.build import build
from shoal.runs.parts import Parts
from shoal.training.checkpoint.writing import Checkpoints, read, restore_into
from shoal.training.steps import keep_hardest

STEPS = 30
SASREC = {"model": "SASRec", "model__n_layers": 1, "train__batch_size": 13}
MODELS: dict[str, dict[str, Any]] = {
    "BPR": {"model": "BPR"},
    "NeuMF": {"model": "NeuMF"},
    "SASRec": SASREC,
    "SASRec BPR": {**SASREC, "model__loss_type": "BPR", "train__negatives": {"num": 2}},
}
for name, more in {"BERT4Rec": {}, "BERT4Rec tied": {"model__tied": True}}.items():
    MODELS[name] = {
        "model": "BERT4Rec",
        "model__n_layers": 1,
        "train__batch_size": 31,
        "model__mask_ratio": 0.5,
        "train__negatives": None,
        **more,
    }
PLACES: dict[str, dict[str, Any]] = {
    "row by hash": {"strategy__place": "row"},
    "row by range": {"strategy__place": "row", "strategy__row_by": "range"},
    "table": {"strategy__place": "table"},
    "column": {"strategy__place": "column"},
    "auto": {},
    "mixed": {"strategy__place": "row"},
}
MIXED: dict[str, Any] = {  # what "mixed" decides for tables of its own
    "BPR": {"user": {"place": "replicate"}, "item": {"by": "range"}},
    "NeuMF": {"mf_item": {"place": "table", "rank": 0}, "mlp_user": {"place": "column"}},
    "SASRec": {"item": {"place": "replicate"}},
    "SASRec BPR": {"item": {"place": "table", "rank": 0}},
    "BERT4Rec": {"output": {"by": "range"}, "output_bias": {"place": "replicate"}},
    "BERT4Rec tied": {"output_bias": {"place": "column"}},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"train__optimizer__name": "sgd", "train__optimizer__lr": 0.5},
    # At 0.05 SASRec turns a nudge of one unit in the last place into 7e-5 within 50 steps.
    "adagrad": {"train__optimizer__name": "adagrad", "train__optimizer__lr": 0.01},
    "adam": {"train__optimizer__name": "adam", "train__optimizer__lr": 0.003},
}
OTHERS: dict[str, dict[str, Any]] = {  # further ways to train, each on rows by hash
    "clipped": {"model": "BPR", "train__clip_grad_norm": 0.05, **OPTIMIZERS["sgd"]},
    "dynamic negatives": {
        "model": "BPR",
        "train__negatives__dynamic": True,
        "train__negatives__candidates": 4,
        **OPTIMIZERS["adam"],
    },
    "whole tables": {"model": "LightGCN", **OPTIMIZERS["adam"]},
    "vectors": {**MODELS["SASRec"], **VECTORS, **OPTIMIZERS["adam"]},
    "vectors without rows": {
        **MODELS["SASRec"],
        **VECTORS,
        **OPTIMIZERS["adam"],
        "data__item_vectors__rows": "none",
    },
    "an empty slice": {"model": "BPR", "train__batch_size": 2, **OPTIMIZERS["adam"]},
    "an empty slice of a softmax": {
        **MODELS["BERT4Rec"],
        "train__batch_size": 2,
        **OPTIMIZERS["adagrad"],
    },
}
STRIPES: dict[str, dict[str, Any]] = {  # ddp, whose output tables are updated in stripes
    "stripes": {**MODELS["BERT4Rec"], **OPTIMIZERS["adam"]},
    "vectors in ddp": {**MODELS["BPR"], **VECTORS, **OPTIMIZERS["adam"]},
    "an empty slice of stripes": OTHERS["an empty slice of a softmax"],
}
METRICS = {
    "BPR full": {"model": "BPR"},
    "NeuMF full": {"model": "NeuMF"},
    "NeuMF uni": {"model": "NeuMF", "eval__mode": "uni20"},
    "SASRec pop": {"model": "SASRec", "eval__mode": "pop20"},
}
QUICK = [  # (model, place, optimizer): each of the three at least once, the rest when there is time
    ("BPR", "row by hash", "adam"),
    ("BPR", "column", "adagrad"),
    ("BPR", "auto", "sgd"),
    ("NeuMF", "mixed", "adam"),
    ("NeuMF", "table", "adagrad"),
    ("SASRec", "row by hash", "adam"),
    ("SASRec", "row by range", "sgd"),
    ("SASRec BPR", "row by hash", "adagrad"),
    ("BERT4Rec", "row by hash", "adagrad"),
    ("BERT4Rec", "mixed", "sgd"),
    ("BERT4Rec tied", "auto", "adagrad"),
]
ALL = [(model, place, opt) for model in MODELS for place in PLACES for opt in OPTIMIZERS]


def make(world: World, name: str = "auto", **values: Any) -> tuple[Parts, Config]:
    """The parts of a run under the named strategy."""
    if name != "sharded":
        values = {key: v for key, v in values.items() if not key.startswith("strategy__")}
    values = {"train__batch_size": 61, **values, "strategy__name": name}
    config = small_config(values.pop("model"), **values)
    parts = build(config, world)
    parts.model.train()
    return parts, config


def losses(
    parts: Parts, config: Config, world: World, steps: int = STEPS, start: int = 0
) -> list[float]:
    """Mean losses of the global batches start, start + 1, ... as the trainer walks them."""
    negatives = config.train.negatives
    dynamic = negatives is not None and negatives.dynamic
    found: list[float] = []
    for batch, following in one_ahead(first_batches(parts.reader, world, steps, start)):
        batch = keep_hardest(parts.model, batch, config)
        if following is not None and not dynamic:
            parts.strategy.prefetch(following)
        found.append(float(parts.strategy.train_step(batch)))
    return found


def curve(world: World, name: str, **values: Any) -> list[float]:
    return losses(*make(world, name, **values), world)


def metrics(world: World, name: str, **values: Any) -> dict[str, float]:
    shoal.training.evaluation.evaluator.TILE_USERS = (
        16  # 131 users make 9 tiles, which 2, 3 and 4 do not divide
    )
    parts, config = make(world, name, **values)
    losses(parts, config, world, 5)
    return parts.evaluator.evaluate(parts.model, "test")


def bytes_per_step(world: World) -> dict[str, float]:
    """Payload of a step for tables and batches of several sizes, all on rows by hash."""
    found = {}
    for name, rows, batch in (
        ("base", 200, 60),
        ("large table", 2000, 60),
        ("large batch", 2000, 240),
    ):
        sizes = {"data__synthetic__items": rows, "data__synthetic__users": rows // 2}
        sizes |= {"data__synthetic__interactions": 5000, "train__batch_size": batch}
        parts, config = make(world, "sharded", model="BPR", strategy__place="row", **sizes)
        losses(parts, config, world, 2)
        before = world.bytes_sent
        losses(parts, config, world, 5)
        found[name] = (world.bytes_sent - before) / 5
    return found


def rows_held(world: World) -> dict[str, int]:
    """Rows that this rank's leaves hold."""
    parts, _ = make(world, "sharded", model="BPR", strategy__place="row")
    return {name: len(store.engine) for name, store in parts.strategy.stores.items()}  # type: ignore[attr-defined]


RELAY = {**SASREC, **OPTIMIZERS["adam"]}
LEGS: dict[int, list[tuple[int, str, str]]] = {  # ranks -> number of the leg, strategy, place
    3: [(0, "sharded", "row")],
    1: [(1, "single", "auto")],
    2: [(2, "sharded", "column"), (3, "ddp", "auto"), (4, "sharded", "table")],
}


def legs(world: World, folder: str, todo: list[tuple[int, str, str]]) -> list[float]:
    """Ten steps for each leg, from one checkpoint to the next."""
    found: list[float] = []
    checkpoints = Checkpoints(Path(folder), world, keep=100)
    for number, name, place in todo:
        if number and not checkpoints.committed():
            return []  # the leg before was not run: another test's ranks
        parts, config = make(world, name, **RELAY, strategy__place=place)
        if number:
            restore_into(parts.strategy, checkpoints.load_step(10 * number))
        found += losses(parts, config, world, 10, start=10 * number)
        checkpoints.save(parts.strategy, {"step": 10 * (number + 1)})
        checkpoints.wait()
        world.barrier()
    return found


def untrained(world: World, folder: str, name: str) -> None:
    """Checkpoints of rows as they begin."""
    for place in ("row", "column", "table") if name == "sharded" else ("row",):
        checkpoints = Checkpoints(Path(folder) / f"{name} {place}", world)
        parts, _ = make(world, name, **RELAY, strategy__place=place)
        checkpoints.save(parts.strategy, {"step": 0})
        checkpoints.wait()


def everything(world: World, cases: list[list[str]], folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for model, place, optimizer in cases:
        values = {**MODELS[model], **PLACES[place], **OPTIMIZERS[optimizer]}
        values["strategy__tables"] = MIXED[model] if place == "mixed" else {}
        found[f"{model}, {place}, {optimizer}"] = curve(world, "sharded", **values)
    for name, values in OTHERS.items():
        found[name] = curve(world, "sharded", strategy__place="row", **values)
    replicated.STRIPED = 0
    for name, values in STRIPES.items():
        found[name] = curve(world, "ddp", **values)
    values = {**MODELS["SASRec BPR"], **OPTIMIZERS["adagrad"], "strategy__place": "row"}
    found["no prefetch"] = curve(world, "sharded", strategy__prefetch=False, **values)
    for name, values in METRICS.items():
        values = {**values, **OPTIMIZERS["adam"], "strategy__place": "row"}
        found[name] = metrics(world, "sharded", **values)
    found["bytes"] = bytes_per_step(world)
    found["rows"] = rows_held(world)
    found["legs"] = legs(world, folder, LEGS.get(world.size, []) if world.size > 1 else [])
    if world.size == 2:
        untrained(world, folder, "sharded")
    return found


@cache
def alone(model: str, optimizer: str) -> list[float]:
    return curve(World(), "single", **MODELS[model], **OPTIMIZERS[optimizer])


def run(size: int, every_case: bool, folder: Path) -> list[dict[str, Any]]:
    """What every rank found; run once, a failure likewise."""
    if size == 2 and not every_case:  # the relay: 3 ranks, then 1, then 2
        first_legs(folder)
    found = run_once(size, every_case, folder)
    if isinstance(found, Exception):
        raise found
    return found


@cache
def first_legs(folder: Path) -> list[float]:
    """Losses of the legs before the last ones."""
    before = run(3, False, folder)[0]["legs"]
    return before + legs(World(), str(folder / "checkpoints"), LEGS[1])


@cache
def run_once(size: int, every_case: bool, folder: Path) -> list[dict[str, Any]] | Exception:
    cases = [case for case in ALL if case not in QUICK] if every_case else QUICK
    checkpoints = str(folder / "checkpoints")
    try:
        if size == 1:
            return [everything(World(), cases, checkpoints)]  # type: ignore[arg-type]
        return run_ranks(everything, size, folder, cases, checkpoints)
    except Exception as error:
        return error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks") / "out"


SIZES = pytest.mark.parametrize(
    "size", [pytest.param(1, marks=pytest.mark.slow), 2, 3, pytest.param(4, marks=pytest.mark.slow)]
)


@SIZES
@pytest.mark.parametrize("case", QUICK, ids=", ".join)
def test_losses_equal_single(size: int, case: tuple[str, str, str], folder: Path) -> None:
    model, _, optimizer = case
    for rank in run(size, False, folder):
        assert rank[", ".join(case)] == pytest.approx(alone(model, optimizer), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_losses_equal_single_everywhere(size: int, folder: Path) -> None:
    for rank in run(size, True, folder):
        for case in ALL:
            if case not in QUICK:
                expected = pytest.approx(alone(case[0], case[2]), rel=1e-5)
                assert rank[", ".join(case)] == expected, case


@SIZES
@pytest.mark.parametrize("name", [*OTHERS, *STRIPES])
def test_other_ways_to_train_equal_single(size: int, name: str, folder: Path) -> None:
    expected = curve(World(), "single", **{**OTHERS, **STRIPES}[name])
    for rank in run(size, False, folder):
        assert rank[name] == pytest.approx(expected, rel=1e-5)


@SIZES
def test_prefetch_changes_no_bit(size: int, folder: Path) -> None:
    for rank in run(size, False, folder):
        assert rank["no prefetch"] == rank["SASRec BPR, row by hash, adagrad"]


@SIZES
@pytest.mark.parametrize("name", METRICS)
def test_metrics_equal_single(size: int, name: str, folder: Path) -> None:
    expected = metrics(World(), "single", **METRICS[name], **OPTIMIZERS["adam"])
    for rank in run(size, False, folder):
        assert rank[name] == pytest.approx(expected, rel=0, abs=1e-8)


@SIZES
def test_bytes_grow_with_touched_rows_not_with_the_table(size: int, folder: Path) -> None:
    ranks = [rank["bytes"] for rank in run(size, False, folder)]
    sent = {name: sum(rank[name] for rank in ranks) for name in ranks[0]}
    if size == 1:
        assert sent == {"base": 0, "large table": 0, "large batch": 0}
        return
    # Ten times the rows: fewer repeats in a batch, so a little more, far from ten times.
    assert 0.9 * sent["base"] < sent["large table"] < 1.3 * sent["base"]
    # Four times the batch: a little less than four times, because more of its ids repeat.
    assert 3.0 * sent["large table"] < sent["large batch"] < 4.5 * sent["large table"]
    # 60 samples touch at most 180 rows; each is an id, a row and a gradient of 16 floats, and what
    # a rank asks of itself does not travel.
    away = 180 * (size - 1) / size
    assert sent["large table"] < away * (8 + 64 + 64) + 1000 * size


@SIZES
def test_each_rank_holds_its_share_of_the_rows(size: int, folder: Path) -> None:
    ranks = run(size, False, folder)
    for table, rows in (("user", 132), ("item", 98)):
        held = [rank["rows"][table] for rank in ranks]
        assert sum(held) == rows
        assert max(held) - min(held) <= 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_loss_goes_down(model: str, optimizer: str) -> None:
    """On a batch that it learned from: batches differ too much to hold one against another."""
    parts, config = make(World(), "single", **MODELS[model], **OPTIMIZERS[optimizer])
    batch = next(iter(parts.reader.batches(0)))

    def loss() -> float:
        with torch.no_grad():
            output = parts.model(batch)
        return float(output.loss) / int(output.count)

    before = loss()
    losses(parts, config, World())
    assert loss() < before


# ---- a run handed on from one world to the next -------------------------------------------------


def test_a_run_continues_with_another_world_size(folder: Path) -> None:
    found = first_legs(folder) + run(2, False, folder)[0]["legs"]
    expected = losses(*make(World(), "single", **RELAY), World(), steps=50)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_sharded_checkpoint_is_that_of_a_single_process(folder: Path) -> None:
    """Before the first step rows are equal to the last bit, so the files are too."""
    run(2, False, folder)
    untrained(World(), str(folder), "single")
    expected = checksums(folder / "single row/step-000000000")
    assert len(expected) == 3
    for place in ("row", "column", "table"):
        found = checksums(folder / f"checkpoints/sharded {place}/step-000000000")
        assert found == expected


def checksums(path: Path) -> dict[str, Any]:
    read(path)  # which verifies them
    return json.loads((path / "manifest.json").read_text())["files"]
