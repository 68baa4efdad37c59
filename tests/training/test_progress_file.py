"""RUN/progress.json while a run trains, on one process, several, and with servers."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from commands import shoal
from test_full_disk import disk as disk  # a fixture

import shoal as package
from shoal.distributed.stop_signals import Agreement
from shoal.distributed.world import World
from shoal.training import progress_file
from shoal.training.progress_file import ProgressFile
from shoal.training.strategies.base import Single

SMALL = {
    "data.synthetic": {"users": 90, "items": 60, "interactions": 2000},
    "run.trackers": [],
    "run.log_level": "warning",
    "train.batch_size": 128,
}
WORDS = (
    "--dataset=synthetic",
    "--data.synthetic.users=90",
    "--data.synthetic.items=60",
    "--model=BPR",
    "--data.synthetic.interactions=2000",
    "--run.trackers=[]",
    "--train.batch_size=128",
    "--train.epochs=100000",
    "--train.patience=100000",
    "--run.threads=1",
    "--output=run",
)


def writer(folder: Path) -> ProgressFile:
    world = World()
    return ProgressFile(folder, Single(world), Agreement(world), 128)


def test_the_progress_file_is_written_and_removed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(progress_file, "EVERY", 0.0)
    replace = os.replace

    def note(old: Path, new: Path) -> None:
        replace(old, new)
        if Path(new).name == "progress.json":
            seen.append(json.loads(Path(new).read_text()))

    monkeypatch.setattr(os, "replace", note)
    values = {"epochs": 2, "run.output": str(tmp_path / "run"), **SMALL}
    package.run("BPR", "synthetic", **values)
    assert not (tmp_path / "run" / "progress.json").exists()
    trained = [one for one in seen if one["phase"] == "train"]
    steps = trained[0]["steps"]
    places = [(one["epoch"], one["step"]) for one in trained]
    assert places == [(epoch, step + 1) for epoch in range(2) for step in range(steps)]
    assert {one["phase"] for one in seen} == {"train", "valid", "test"}
    for one in trained:
        assert one["epochs"] == 2 and one["samples_per_second"] > 0 and one["servers"] == []
        assert one["memory"]["host"] > 1 << 20 and one["memory"]["gpu"] is None
        (rank,) = one["ranks"]
        assert (rank["rank"], rank["pid"], rank["host"]) == (0, os.getpid(), World.host)
        assert abs(rank["seen"] - one["time"]) < 5.0


def test_the_progress_file_is_written_every_two_seconds_at_most(tmp_path: Path) -> None:
    progress = writer(tmp_path)
    progress.trained(0, 9, 1, 5)
    first = (tmp_path / "progress.json").stat().st_mtime_ns
    progress.trained(0, 9, 2, 5)
    assert (tmp_path / "progress.json").stat().st_mtime_ns == first
    progress._due = time.monotonic()
    progress.trained(0, 9, 3, 5)
    assert json.loads((tmp_path / "progress.json").read_text())["step"] == 3


def test_a_full_disk_or_a_link_does_not_end_a_run(disk: Path, tmp_path: Path) -> None:
    progress = writer(disk)
    progress.trained(0, 9, 1, 5)
    progress.close()
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".progress.json.new").symlink_to(tmp_path / "outside")
    writer(tmp_path / "run").trained(0, 9, 1, 5)
    assert (tmp_path / "outside").read_text() == "kept"


@pytest.mark.slow
def test_servers_and_workers_with_when_they_were_seen(tmp_path: Path) -> None:
    command = shoal("launch", "--worker_num=2", "--server_num=2", *WORDS, cwd=tmp_path)
    file = tmp_path / "run" / "progress.json"

    def known() -> Any:
        found = json.loads(file.read_text()) if file.exists() else {}
        servers = found.get("servers", [])
        return found if servers and all(one["seen"] for one in servers) else None

    try:
        found = command.until("servers that were seen", known)
        assert [one["server"] for one in found["servers"]] == [0, 1]
        assert [one["rank"] for one in found["ranks"]] == [0, 1]
        for one in (*found["servers"], *found["ranks"]):
            assert abs(time.time() - one["seen"]) < 60.0
        command.process.terminate()
        assert command.wait() == 143 and not file.exists()
    finally:
        command.kill()
