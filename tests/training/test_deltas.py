"""Deltas: checkpoints that hold changed rows only are read as if each of them were whole."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from click_batches import global_batch, make_model
from ranks import run_ranks
from safetensors.torch import load as parse_tensors
from safetensors.torch import load_file

from shoal.config.row_rules import RowsSection
from shoal.config.schema import OptimizerSection, StrategySection
from shoal.distributed.world import World
from shoal.training.checkpoint.reading import read_manifest
from shoal.training.checkpoint.snapshot import Snapshot, table_of
from shoal.training.checkpoint.writing import (
    Checkpoints,
    read,
    restore_into,
    take_snapshot,
    write_tensors,
)
from shoal.training.retention import verify
from shoal.training.strategies import make_strategy
from shoal.training.strategies.compile_cache import FOLDER

COUNTED = RowsSection.model_validate({"admission": {"threshold": 2.0}})
EVERY = 3  # of so many checkpoints one is whole


def strategy_of(kind: str, world: World, place: str = "row", **more: Any) -> Any:
    section = {"name": "single"} if world.size == 1 else {"name": "sharded", "place": place}
    if place == "ddp":
        section = {"name": "ddp"}
    strategy = make_strategy(StrategySection.model_validate(section), world)
    rows = COUNTED if kind == "counted" else None
    kind = "grows" if kind == "counted" else kind
    optimizer = OptimizerSection(name="adagrad", lr=0.5)
    strategy.setup(make_model("DNN", kind), optimizer, seed=1, rows=rows, **more)
    return strategy


def rows_of(snapshot: Snapshot) -> dict[str, dict[int, list[float]]]:
    """Table -> id -> values, state and counters; those of ids without a row apart."""
    found: dict[str, dict[int, list[float]]] = {}
    for name, data in snapshot.files.items():
        table = table_of(name)
        if table is None:
            continue
        tensors = parse_tensors(data.read_bytes() if isinstance(data, Path) else data)  # type: ignore[arg-type]
        for prefix in ("", "pending."):
            if not len(tensors.get(f"{prefix}ids", ())):
                continue
            pending = {k: v for k, v in tensors.items() if k.startswith("pending.") == bool(prefix)}
            ids = pending.pop(f"{prefix}ids")
            flat = [v.double().view(len(ids), -1) for _, v in sorted(pending.items())]
            found.setdefault(prefix + table, {}).update(
                zip(ids.tolist(), torch.cat(flat, 1).tolist())
            )
    return found


def bytes_of_rows(path: Path) -> int:
    files = read_manifest(path)["files"]
    return sum(facts["bytes"] for name, facts in files.items() if table_of(name) is not None)


@pytest.mark.parametrize("kind", ["fixed", "grows", "counted"])
def test_every_checkpoint_of_a_chain_is_whole_when_read(tmp_path: Path, kind: str) -> None:
    strategy = strategy_of(kind, World())
    checkpoints = Checkpoints(tmp_path, World(), keep=99, whole_every=EVERY)
    expected = []
    for step in range(1, 8):
        strategy.train_step(global_batch(step, "one", "fixed" if kind == "fixed" else "grows"))
        checkpoints.save(strategy, {"step": step, "best_step": None})
        expected.append(rows_of(take_snapshot(strategy, {})))
    checkpoints.wait()
    paths = checkpoints.committed()[::-1]
    bases = [read_manifest(path).get("base") for path in paths]
    named = [path.name for path in paths]
    assert bases == [None, *named[:2], None, *named[3:5], None]
    assert bytes_of_rows(paths[1]) < bytes_of_rows(paths[3])
    for path, rows in zip(paths, expected):
        kinds = {"delta" in file.name for file in path.glob("rows-*")}
        assert kinds == {path not in paths[::3]}
        other = strategy_of(kind, World())
        restore_into(other, read(path))
        again = rows_of(take_snapshot(other, {}))
        assert again.keys() == rows.keys()
        for table in rows:
            assert again[table] == rows[table], (path.name, table)


def test_old_deltas_are_removed_with_their_base(tmp_path: Path) -> None:
    strategy = strategy_of("fixed", World())
    checkpoints = Checkpoints(tmp_path, World(), keep=1, whole_every=EVERY)
    for step in range(1, 5):
        strategy.train_step(global_batch(step, "one", "fixed"))
        checkpoints.save(strategy, {"step": step, "best_step": None})
        checkpoints.wait()
        assert len(checkpoints.committed()) == (1 if step == 4 else step)


def test_verify_lists_every_checkpoint_that_builds_upon_damage(tmp_path: Path) -> None:
    strategy = strategy_of("fixed", World())
    checkpoints = Checkpoints(tmp_path / "checkpoints", World(), keep=9, whole_every=EVERY)
    for step in range(1, 5):
        strategy.train_step(global_batch(step, "one", "fixed"))
        checkpoints.save(strategy, {"step": step, "best_step": None})
    checkpoints.wait()
    (tmp_path / "config.yaml").touch()
    assert [one.problem for one in verify(tmp_path)] == [None] * 4
    next((tmp_path / "checkpoints" / "step-000000002").glob("rows-*")).write_bytes(b"")
    found = verify(tmp_path)
    assert [one.path.name[-1] for one in found if one.problem is None] == ["4", "1"]
    assert "builds upon step-000000002" in str(found[1].problem)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["row", "column", "ddp"])
def test_deltas_of_two_ranks(tmp_path: Path, place: str) -> None:
    same = run_ranks(chain_of_ranks, 2, tmp_path / "out", str(tmp_path / "checkpoints"), place)
    assert same == [True, True]


def chain_of_ranks(world: World, folder: str, place: str) -> bool:
    same = True
    for kind in ["fixed"] if place == "column" else ["fixed", "grows"]:
        strategy, own = strategy_of(kind, world, place), Path(folder) / kind
        checkpoints = Checkpoints(own, world, keep=99, whole_every=EVERY)
        for step in range(1, 6):
            whole = global_batch(step, "one", kind)
            cuts = [whole.size * rank // world.size for rank in (world.rank, world.rank + 1)]
            strategy.train_step(whole.rows(*cuts))
            strategy.synchronize()
            checkpoints.save(strategy, {"step": step, "best_step": None})
            snapshot = take_snapshot(strategy, {})
            checkpoints.wait()
            if world.is_main:
                path = checkpoints.committed()[0]
                same &= ("base" in read_manifest(path)) == (step in (2, 3, 5))
                same &= rows_of(read(path)) == rows_of(snapshot)
            world.barrier()
    return same


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_columns_are_written_as_they_are(tmp_path: Path, rows: int) -> None:
    """A column of one number has the stride of its table, and torch calls it contiguous."""
    column = torch.arange(6).view(3, 2)[:rows, 1]
    write_tensors(tmp_path / "a.safetensors", {"ids": column})
    assert torch.equal(load_file(tmp_path / "a.safetensors")["ids"], column)


@pytest.mark.parametrize("kept", [False, True])
def test_a_journal_is_removed_with_its_servers(tmp_path: Path, kept: bool) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "000-000001").touch()
    checkpoints = Checkpoints(tmp_path, World(), journal=kept)
    checkpoints.save(strategy_of("fixed", World()), {"step": 1, "best_step": None})
    checkpoints.wait()
    assert (tmp_path / "journal").exists() == kept


def test_compiled_code_is_in_a_place_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    monkeypatch.setenv(FOLDER, "")
    monkeypatch.delenv(FOLDER)
    strategy_of("fixed", World(), compiled=True)
    assert os.environ[FOLDER] == str(tmp_path / "compiled")
    assert (tmp_path / "compiled").stat().st_mode & 0o077 == 0
