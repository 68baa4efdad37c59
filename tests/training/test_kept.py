"""Checkpoints looked after by hand: verified, pruned, copied."""

import json
import shutil
from pathlib import Path

import pytest
from test_checkpoint import checkpoints, flip, train
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.runs.trained_run import Trained
from shoal.training import retention
from shoal.training.checkpoint.writing import read, write


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four checkpoints, of which the newest calls the second the best."""
    folder = tmp_path_factory.mktemp("run") / "run"
    train(folder, checkpoint__keep=4)
    newest, _, second, _ = checkpoints(folder)
    snapshot = read(newest)
    snapshot.state["best_step"] = int(second.name[5:])
    write(newest, snapshot)
    return folder


@pytest.fixture()
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def shoal(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, words)))
    return result.exit_code, result.output


def test_checkpoint_verify_lists_damage(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("shoal.cli.inspect.leave", leave)
    status, output = shoal("checkpoint", "verify", run)
    assert status == 0 and "4 checkpoints, 0 damaged" in output
    flip(checkpoints(run)[1])
    status, output = shoal("checkpoint", "verify", run)
    assert status == 1 and "4 checkpoints, 1 damaged" in output
    assert output.splitlines()[1].startswith(checkpoints(run)[1].name)
    assert "fails its checksum" in output.splitlines()[1]


def test_prune_keeps_undamaged_checkpoints_and_the_best(run: Path) -> None:
    newest, before, best, oldest = checkpoints(run)
    flip(before)
    (run / "checkpoints" / ".step-000000999.new").mkdir()
    status, output = shoal("checkpoint", "prune", run, "--keep=1")
    assert status == 0 and "2 removed" in output
    assert checkpoints(run) == [newest, best] and not before.exists() and not oldest.exists()
    assert not list((run / "checkpoints").glob(".*"))


def test_prune_keeps_the_last_where_all_are_damaged(run: Path) -> None:
    for path in checkpoints(run):
        flip(path)
    with pytest.raises(ValueError, match="no checkpoint that is whole"):
        retention.prune(run, 1)
    assert len(checkpoints(run)) == 4


def test_a_copy_is_a_run(run: Path, tmp_path: Path) -> None:
    flip(checkpoints(run)[1])
    newest, _, best, _ = checkpoints(run)
    status, output = shoal("checkpoint", "copy", run, tmp_path / "copy")
    assert status == 0, output
    assert [path.name for path in checkpoints(tmp_path / "copy")] == [newest.name, best.name]
    assert Trained(tmp_path / "copy").evaluate()["test"] == Trained(run).evaluate()["test"]
    train(tmp_path / "copy", resume=True, train__epochs=5)
    assert len((tmp_path / "copy" / "metrics.jsonl").read_text().splitlines()) == 5
    assert json.loads((tmp_path / "copy" / "result.json").read_text())["epochs"] == 5
    with pytest.raises(ValueError, match="already holds a run"):
        retention.copy(run, tmp_path / "copy")
