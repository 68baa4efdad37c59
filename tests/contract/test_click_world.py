"""Click logs on several ranks: the same losses, the same metrics, the same number of steps."""

import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click_model import click_config, register, tiny_clicks
from ranks import run_ranks
from small import first_batches

from shoal.clicks.synthetic import synthetic_clicks
from shoal.config.schema import SyntheticClicksSection
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.training.run_folder import RunFolder
from shoal.training.trainer import Trainer

__all__ = ["tiny_clicks"]  # used by being there
STEPS = 50
METRICS = ["AUC", "LogLoss", "Calibration", "GAUC"]
SECTION = SyntheticClicksSection(samples=3100, slots=5, ids_per_slot=40)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic clicks as lines of slots: three uneven files to train on, one to evaluate on."""
    folder = tmp_path_factory.mktemp("clicks")
    for split, cuts in [("train", [0, 1700, 1710, 3100]), ("valid", [0, 310])]:
        samples = synthetic_clicks(SECTION, split).samples  # type: ignore[arg-type]
        lines: list[str] = []
        for label, dense, ids in zip(samples.labels, samples.dense, samples.ids):
            tokens = [f"click:{label:.0f}", *[f"dense_feature:{float(x)!r}" for x in dense]]
            tokens += [f"{k + 1}:{i}" for k, i in enumerate(ids)]
            # Now and then a slot has two ids, so that some batches hold lists.
            lines.append(" ".join(tokens + ([f"2:{ids[0]}"] if len(lines) % 270 == 0 else [])))
        for k, (start, stop) in enumerate(pairwise(cuts)):
            (folder / f"{split}-{k}.txt").write_text("\n".join(lines[start:stop]) + "\n")
    return folder


def values(files: str, **more: Any) -> dict[str, Any]:
    return {
        "data__path": files,
        "data__clicks__train": "train-*",
        "data__clicks__valid": "valid-*",
        "data__clicks__slots": 5,
        "data__clicks__dense": 4,
        "data__clicks__rows": 201,
        "data__clicks__group": "1",
        "eval__metrics": METRICS,
        "train__optimizer__name": "adagrad",
        **more,
    }


def curve(world: World, given: dict[str, Any]) -> dict[str, Any]:
    """Losses of the first steps, and the metrics after them."""
    parts = build(click_config(**given), world)
    parts.model.train()
    slices = first_batches(parts.reader, world, STEPS)
    losses = [float(parts.strategy.train_step(batch)) for batch in slices]
    return {"losses": losses, "valid": parts.evaluator.evaluate(parts.model, "valid")}


def metrics_only(world: World, given: dict[str, Any]) -> dict[str, float]:
    # 310 samples make 5 tiles, which 2 and 3 do not divide
    with mock.patch("shoal.runs.build.TILE_ROWS", 64):
        parts = build(click_config(**given), world)
    return parts.evaluator.evaluate(parts.model, "valid")


def fit(world: World, given: dict[str, Any], folder: str) -> dict[str, Any]:
    """A whole run; how many samples this rank's steps had."""
    config = click_config(**given)
    parts = build(config, world)
    sizes: list[int] = []
    parts.model.register_forward_hook(lambda model, given, output: sizes.append(given[0].size))
    run = RunFolder(folder)
    if world.is_main:
        run.create(False)
    world.barrier()
    given = (parts.strategy, parts.reader, parts.evaluator, run, parts.fingerprint)
    trainer = Trainer(parts.config, *given)
    result = trainer.fit(time.perf_counter())
    return {"step": trainer.cursor.step, "sizes": sizes, "auc": result["test"]["auc"]}


OWN = """
class RecDataset:
    def __init__(self, file_list, config):
        self.file_list = file_list
        assert config["train.batch_size"] == 100

    def __iter__(self):
        for file in self.file_list:
            for line in open(file):
                found = {}
                for token in line.split():
                    key, value = token.split(":")
                    number = float(value) if key == "dense_feature" else int(value)
                    found.setdefault(key, []).append(number)
                ids = [found[str(k + 1)] for k in range(5)]
                yield [found["click"], *ids, found["dense_feature"]]
"""
CURVE = {"train__batch_size": 97, "strategy__name": "auto"}
SPLIT = {
    "data__clicks__reader": "stream",
    "data__clicks__split_files": True,
    "train__batch_size": 101,
    "train__epochs": 1,
    "train__print_every": 10,
}


def own(files: str) -> dict[str, Any]:
    custom = {"data__clicks__reader": "custom", "data__clicks__custom": f"{files}/own.py"}
    return values(files, **custom, train__epochs=1)


def everything(world: World, files: str, scratch: str) -> dict[str, Any]:
    """All that ranks are asked for, in one go: processes are slow to start."""
    register()
    found: dict[str, Any] = {}
    for reader in ("memory", "stream"):
        given = values(files, data__clicks__reader=reader)
        if world.size < 3:
            found[reader] = curve(world, {**given, **CURVE})
        found[f"{reader} metrics"] = metrics_only(world, given)
    if world.size == 2:
        found["split"] = fit(world, values(files, **SPLIT), f"{scratch}/split")
        piped = values(files, **SPLIT, data__clicks__pipe_command="cat")
        found["piped"] = fit(world, piped, f"{scratch}/piped")
        found["own"] = fit(world, own(files), f"{scratch}/own")
    return found


@pytest.fixture(scope="module")
def single(files: Path) -> dict[str, Any]:
    return everything(World(), str(files), "")


@pytest.fixture(scope="module")
def two(files: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    (files / "own.py").write_text(OWN)
    scratch = tmp_path_factory.mktemp("two")
    return run_ranks(everything, 2, scratch / "ranks", str(files), str(scratch))


@pytest.mark.parametrize("reader", ["memory", "stream"])
def test_ddp_equals_single(single: dict, two: list[dict], reader: str) -> None:
    for found in two:
        assert found[reader]["losses"] == pytest.approx(single[reader]["losses"], rel=1e-5)
        assert found[reader]["valid"] == pytest.approx(single[reader]["valid"], abs=1e-5)


def test_metrics_do_not_depend_on_the_world(
    single: dict, two: list[dict], files: Path, tmp_path: Path
) -> None:
    three = run_ranks(everything, 3, tmp_path, str(files), "")
    for reader in ("memory", "stream"):
        expected = single[f"{reader} metrics"]
        assert set(expected) == {"auc", "logloss", "calibration", "gauc"}
        for found in [*two, *three]:
            assert found[f"{reader} metrics"] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("case", ["split", "piped"])
def test_split_files_end_together(two: list[dict], case: str) -> None:
    """With a program in between nobody knows how many steps there are: the ranks agree on it."""
    first, second = (found[case] for found in two)
    # Files 0 and 1 (1710 samples) in batches of 50, and file 2 (1390 samples) in batches of 51.
    assert sum(first["sizes"]) == 1710 and sum(second["sizes"]) == 1390
    assert first["step"] == second["step"] == len(first["sizes"]) == -(-1710 // 50)
    assert second["sizes"][-1] == 0 and first["auc"] == second["auc"]


def test_a_custom_reader_equals_the_stream(two: list[dict], files: Path, tmp_path: Path) -> None:
    given = values(str(files), train__epochs=1, data__clicks__reader="stream")
    stream = fit(World(), given, str(tmp_path / "a"))
    assert fit(World(), own(str(files)), str(tmp_path / "b")) == stream
    assert stream["step"] == 31 and sum(stream["sizes"]) == 3100
    for found in two:
        assert sum(found["own"]["sizes"]) == 3100 // 2 and found["own"]["step"] == 31
        assert found["own"]["auc"] == pytest.approx(stream["auc"], abs=1e-5)


def test_a_program_in_between_changes_nothing(files: Path, tmp_path: Path) -> None:
    given = values(str(files), data__clicks__reader="memory", train__epochs=1)
    plain = fit(World(), given, str(tmp_path / "a"))
    program = "import sys; [sys.stdout.write(line) for line in sys.stdin]"
    given["data__clicks__pipe_command"] = f'{sys.executable} -c "{program}"'
    assert fit(World(), given, str(tmp_path / "b")) == plain


@pytest.mark.parametrize("reader", ["memory", "in order", "stream"])
def test_slices_know_where_they_begin(files: Path, reader: str) -> None:
    """What dropout goes by: a slice begins where that of the rank before it ends."""
    kind = "memory" if reader == "in order" else reader
    given = values(str(files), data__clicks__reader=kind)
    given |= {"train__batch_size": 64, "train__shuffle": reader == "memory"}
    made = build(click_config(**given), World()).reader
    whole = [batch.size for batch in made.batches(0)]
    for ranks in (1, 3):
        slices = zip(*[made.batches(0, rank, ranks) for rank in range(ranks)])
        for size, parts in zip(whole, slices, strict=True):
            ends = [part.first + part.size for part in parts]
            assert [part.first for part in parts] == [0, *ends[:-1]] and ends[-1] == size
