"""Checkpoints: committed and verified, or not there; damage is reported and gone behind."""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small import small_config

import shoal
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.runs.trained_run import Trained
from shoal.training.checkpoint import writing
from shoal.training.checkpoint.writing import (
    CheckpointError,
    Checkpoints,
    read,
    restore_into,
    take_snapshot,
    write,
)
from shoal.training.run_folder import RunFolder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four epochs, whose checkpoints of the last three (and the best) are kept."""
    folder = tmp_path_factory.mktemp("run") / "run"
    train(folder)
    return folder


def train(folder: Path, model: str = "BPR", resume: bool = False, **values: Any) -> dict[str, Any]:
    split = {"data__split__by": "ratio", "data__split__order": "random"}
    given = {"train__epochs": 4, "train__batch_size": 256, "checkpoint__keep": 3, **split, **values}
    config = small_config(model, run__output=str(folder), **given)
    return shoal.run(config_dict=flat(config.model_dump(mode="json")), resume=resume)


def flat(values: dict[str, Any]) -> dict[str, Any]:
    options = values["model"].pop("options")
    return {**values, "model": {**values["model"], **options}}


@pytest.fixture()
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture()
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The warnings of the log."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr("shoal.runs.run.start_logging", lambda *_: None)  # it would take our place
    logging.getLogger("shoal").addHandler(handler)
    yield lines
    logging.getLogger("shoal").removeHandler(handler)


def checkpoints(run: Path) -> list[Path]:
    return Checkpoints(run / "checkpoints", World()).committed()


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k != "phases" and not k.endswith("_seconds")}
        for line in lines
    ]


def rows_of(path: Path) -> Path:
    return sorted(path.glob("rows-*"))[0]


def flip(path: Path) -> None:
    data = bytearray(rows_of(path).read_bytes())
    data[len(data) // 2] ^= 1
    rows_of(path).write_bytes(data)


def truncate(path: Path) -> None:
    rows_of(path).write_bytes(rows_of(path).read_bytes()[:-1])


def delete(path: Path) -> None:
    rows_of(path).unlink()


def delete_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def tear_manifest(path: Path) -> None:
    (path / "manifest.json").write_text((path / "manifest.json").read_text()[:200])


def edit_manifest(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["state"]["epoch"] += 1
    (path / "manifest.json").write_text(json.dumps(manifest))


DAMAGES = [flip, truncate, delete, delete_manifest, tear_manifest, edit_manifest]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_a_damaged_newest_one_is_reported_and_the_one_before_used(
    run: Path, said: list[str], damage: Any
) -> None:
    newest, before = checkpoints(run)[:2]
    damage(newest)
    snapshot = Checkpoints(run / "checkpoints", World()).load_newest()
    assert snapshot is not None and f"step-{snapshot.state['step']:09d}" == before.name
    (line,) = said
    assert str(newest) in line and "damaged" in line and "trying the one before" in line
    assert newest.exists()  # reading changes nothing


def test_a_run_resumed_before_the_damage_ends_with_the_same_result(
    run: Path, trained: Path
) -> None:
    expected = json.loads((trained / "result.json").read_text())
    flip(checkpoints(run)[0])
    result = train(run, resume=True)
    assert result["test"] == expected["test"] and result["best_valid"] == expected["best_valid"]
    assert metrics(run) == metrics(trained)
    assert [p.name for p in checkpoints(run)] == [p.name for p in checkpoints(trained)]
    for path in checkpoints(run):
        read(path)


def test_a_run_whose_checkpoints_are_all_damaged_is_an_error(run: Path) -> None:
    for path in checkpoints(run):
        truncate(path)
    with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged"):
        train(run, resume=True)
    assert len(checkpoints(run)) == 3  # nothing was removed


def test_half_written_folders_are_ignored_and_swept(run: Path) -> None:
    half = run / "checkpoints" / ".step-000000999.new"
    shutil.copytree(checkpoints(run)[0], half)
    newest = checkpoints(run)[0].name
    snapshot = Checkpoints(run / "checkpoints", World()).load_newest()
    assert snapshot is not None and f"step-{snapshot.state['step']:09d}" == newest
    train(run, resume=True, train__epochs=5)
    assert not list((run / "checkpoints").glob(".*"))
    assert checkpoints(run)[0].name > newest


def test_the_last_k_and_the_best_are_kept(tmp_path: Path) -> None:
    parts = build(small_config("BPR"), World())
    folder = Checkpoints(tmp_path / "c", World(), keep=2)
    # Best at step 20, then again at 50. Of the last two, 40 still calls 20 the best.
    bests = {10: 10, 20: 20, 30: 20, 40: 20, 50: 50}
    kept = {10: [10], 20: [20, 10], 30: [30, 20], 40: [40, 30, 20], 50: [50, 40, 20]}
    for step, best in bests.items():
        folder.save(parts.strategy, {"step": step, "best_step": best})
        folder.wait()
        assert [int(p.name[5:]) for p in folder.committed()] == kept[step]
    folder.save(parts.strategy, {"step": 60, "best_step": 50})
    folder.wait()
    assert [int(p.name[5:]) for p in folder.committed()] == [60, 50]


def test_a_damaged_newer_checkpoint_does_not_count_as_kept(tmp_path: Path) -> None:
    parts = build(small_config("BPR"), World())
    folder = Checkpoints(tmp_path / "c", World(), keep=1)
    folder.save(parts.strategy, {"step": 100, "best_step": None})
    folder.wait()
    flip(folder.committed()[0])
    folder.save(parts.strategy, {"step": 90, "best_step": None})  # gone behind it, another rhythm
    folder.wait()
    assert [p.name for p in folder.committed()] == ["step-000000090"]


def test_a_lost_best_checkpoint_is_reported_and_replaced(run: Path, said: list[str]) -> None:
    newest = checkpoints(run)[0]
    snapshot = read(newest)
    snapshot.state["best_step"] = 1  # which is not there
    write(newest, snapshot)
    result = train(run, resume=True, train__epochs=6)
    (line,) = said
    assert "step-000000001" in line and "the best checkpoint is lost" in line
    assert result["best_epoch"] in (4, 5)  # of the epochs that were still to come


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"model": "NeuMF"}, "model was 'BPR', is now 'NeuMF'"),
        ({"model__embedding_size": 8}, "model.embedding_size was 16, is now 8."),
        ({"data__synthetic__users": 130}, "num_users was 132, is now 131"),
        ({"data__synthetic__seed": 8}, "the interactions are others"),
        ({"train__batch_size": 128}, "batch_size was 256, is now 128"),
        ({"run__seed": 1}, "seed was 2020, is now 1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_checkpoint_of_another_run_is_refused(run: Path, change: dict, reason: str) -> None:
    before = metrics(run)
    with pytest.raises(CheckpointError, match="belong to another run") as caught:
        train(run, change.pop("model", "BPR"), resume=True, **change)
    assert reason in str(caught.value) and "--output" in str(caught.value)
    assert metrics(run) == before and len(checkpoints(run)) == 3


def test_another_learning_rate_or_more_epochs_are_fine(run: Path) -> None:
    result = train(run, resume=True, train__epochs=5, train__optimizer__lr=0.01)
    assert result["epochs"] == 5


def test_a_snapshot_is_restored_exactly(tmp_path: Path) -> None:
    config = small_config("SASRec")
    first, second = build(config, World()), build(config, World())
    for batch in first.reader.batches(0):
        first.strategy.train_step(batch)
    state = {"step": 3, "best_step": None, "loss_sum": 0.1 + 0.2}
    write(tmp_path / "step-000000003", take_snapshot(first.strategy, state))
    snapshot = read(tmp_path / "step-000000003")
    assert snapshot.state["loss_sum"] == 0.1 + 0.2
    restore_into(second.strategy, snapshot)
    again = take_snapshot(second.strategy, state)
    assert snapshot.files.keys() == again.files.keys()
    for name, data in again.files.items():
        assert (tmp_path / "step-000000003" / name).read_bytes() == data


def test_unwritable_places(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/shoal")):
        with pytest.raises(ValueError, match=r"cannot write the run's folder .*--output"):
            train(place)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_failed_write_is_reported_and_keeps_older_checkpoints(tmp_path: Path) -> None:
    parts = build(small_config("BPR"), World())
    folder = Checkpoints(tmp_path / "c", World())
    folder.save(parts.strategy, {"step": 1, "best_step": None})
    folder.wait()
    (tmp_path / "c" / ".step-000000002.new").symlink_to("/dev/null")  # in the way of the next
    folder._swept = True
    folder.save(parts.strategy, {"step": 2, "best_step": None})
    with pytest.raises(CheckpointError, match=r"could not write .*Those before it are untouched"):
        folder.wait()
    assert [p.name for p in folder.committed()] == ["step-000000001"]
    read(folder.committed()[0])


def test_an_existing_run_is_not_overwritten(run: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    with pytest.raises(ValueError, match="already holds a run; continue it with --resume"):
        train(run)
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_a_finished_run_that_is_resumed_has_the_same_result(run: Path, trained: Path) -> None:
    expected = json.loads((trained / "result.json").read_text())
    result = train(run, resume=True)
    for key in ("test", "best_valid", "epochs", "best_epoch"):
        assert result[key] == expected[key]


def test_metrics_after_the_last_checkpoint_are_removed_on_resume(run: Path, trained: Path) -> None:
    """Killed after the first line of metrics and before the first checkpoint."""
    shutil.rmtree(run / "checkpoints")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 4, "lo')  # torn
    train(run, resume=True)
    assert metrics(run) == metrics(trained)


def test_a_folder_is_locked_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    taken = pytest.raises(ValueError, match=f"in use by process {os.getpid()} on host")
    with folder.locked(), taken, RunFolder(tmp_path).locked():
        pass
    with folder.locked():
        pass


def test_a_run_without_checkpoints_cannot_be_used(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ValueError, match="has no checkpoint to load; train first"):
        Trained(run)


@pytest.mark.parametrize("where", ["begin", "start"])
def test_a_signal_before_a_checkpoint_is_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def stop(*_: Any) -> None:
        if where == "begin":
            begun(tmp_path / "step-000000007")
        raise shoal.Interrupted(2)

    parts = build(small_config("BPR"), World())
    begun = writing.begin
    if where == "begin":
        monkeypatch.setattr(writing, "begin", stop)
    else:
        monkeypatch.setattr(writing.threading.Thread, "start", stop)
    saving = Checkpoints(tmp_path, World())
    with pytest.raises(shoal.Interrupted):
        saving.save(parts.strategy, {"step": 7})
    assert list(tmp_path.iterdir()) == []
    # As the command ends: Python lists a thread that was stopped while it started.
    threads = [thread for thread in (saving._writer,) if thread is not None]
    monkeypatch.setattr(writing.threading, "enumerate", lambda: threads)
    writing.finish_writing(1.0)
