"""Nothing depends on the time of day: clocks are set, and those of two hosts differ.

In the processes of these runs every reading of the clock is weeks before or after the one before.
"""

from __future__ import annotations

import ast
import os
import signal
import time
from pathlib import Path

import pytest
from commands import ROOT, metrics, newest_step, result, run_here, shoal

from shoal.data.column_store import filled_folder
from shoal.data.loading.load import write_cache

WEEKS = 40 * 86_400.0
# Python imports this by itself where PYTHONPATH has its folder.
JUMPING = """
import itertools, os, pathlib, time
pathlib.Path(os.environ["JUMPED"]).touch()
right, jumps = time.time, itertools.cycle([0.0, -40 * 86400.0, 40 * 86400.0])
time.time = lambda: right() + next(jumps)
time.time_ns = lambda: int(1e9 * time.time())
"""
SMALL = (
    "--model=BPR",
    "--dataset=synthetic",
    "--data.synthetic.users=90",
    "--data.synthetic.items=60",
    "--data.synthetic.interactions=2400",
    "--train.batch_size=256",
    "--run.trackers=[]",
    "--run.threads=1",
    "--checkpoint.keep=50",
)
# What reads the time of day, and what for. Deadlines, waits and durations read time.monotonic and
# time.perf_counter; order is by numbers of steps.
READERS = {
    "compat/estimator/export.py": "name of an artifact, higher than those before",
    "data/loading/load.py": "age of what a killed process left, beside its lock",
    "distributed/stop_signals.py": "shown on the board",
    "experiments/board/app.py": "shown on the board",
    "launch/child.py": "shown in a report of torch's launcher",
    "planning/machine_check.py": "compared with the clock of the disk, and shown",
    "ps/worker/heartbeat.py": "shown on the board",
    "serving/artifact/export.py": "shown in exports.json",
    "serving/pipeline/pipeline.py": "the moment of a question: age of items, of what was taken",
    "serving/pipeline/log_writer.py": "the moment of an answer, and the name of a log",
    "serving/service/live.py": "shown in the metrics of a service",
    "training/progress_file.py": "shown on the board",
    "training/run_folder.py": "name of a new run; lines of a log",
    "training/trackers/mlflow.py": "shown by MLflow",
}
READS = {"time", "time_ns", "localtime", "ctime", "now", "utcnow", "today"}


def jumping(folder: Path) -> dict[str, str]:
    """The environment of a process whose clock jumps."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(JUMPING)
    return {"PYTHONPATH": f"{site}:{ROOT}", "JUMPED": str(folder / "jumped")}


def reads_the_clock(call: ast.Call) -> bool:
    """Whether a call reads the time of day: time.time(), datetime.now(), time.strftime(format)."""
    function = call.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return False
    if function.attr == "strftime" and function.value.id == "time":
        return len(call.args) == 1
    return function.value.id in ("time", "datetime", "date") and function.attr in READS


def test_what_reads_the_time_of_day() -> None:
    package = ROOT / "shoal"
    readers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and reads_the_clock(node)
    }
    assert readers == set(READERS), "state here what it is read for, or use time.monotonic"


@pytest.mark.parametrize(
    "processes",
    [
        (),
        pytest.param(("--nproc=2", "--strategy=ddp"), marks=pytest.mark.slow),
        pytest.param(
            ("--nproc=2", "--strategy=ps", "--launch.servers=1", "--strategy.ps.timeout=30"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_whose_clock_jumps(tmp_path: Path, processes: tuple[str, ...]) -> None:
    """Losses, checkpoints and a stop are those of a steady clock; seconds are those that passed."""
    words = ("train", *SMALL, *processes)
    run_here(*words, "--train.epochs=4", "--output=steady", cwd=tmp_path)
    start, env = time.monotonic(), jumping(tmp_path)
    command = shoal(*words, "--train.epochs=2", "--output=run", cwd=tmp_path, **env)
    assert command.wait() == 0, command.output
    passed = time.monotonic() - start
    assert (tmp_path / "jumped").exists()
    first = newest_step(tmp_path / "run")
    again = shoal(
        "train", "--resume", "run", "--train.epochs=4", *processes[:1], cwd=tmp_path, **env
    )
    assert again.wait() == 0, again.output
    assert "resum" in again.output and newest_step(tmp_path / "run") == 2 * first
    assert metrics(tmp_path / "run") == metrics(tmp_path / "steady")
    seconds = [value for value in result(tmp_path / "run")["seconds"].values() if value is not None]
    assert seconds and all(0 <= value <= 2 * passed + 60 for value in seconds)


def test_a_stop_while_the_clock_jumps_saves(tmp_path: Path) -> None:
    """The seconds of launch.grace are those that pass."""
    endless = ("--train.epochs=100000", "--train.patience=100000", "--launch.grace=60")
    command = shoal(
        "train", *SMALL, *endless, "--nproc=2", "--output=run", cwd=tmp_path, **jumping(tmp_path)
    )
    try:
        progress = tmp_path / "run" / "metrics.jsonl"
        command.until("an epoch", progress.exists)
        os.kill(command.process.pid, signal.SIGTERM)
        assert command.wait() == 128 + signal.SIGTERM, command.output
    finally:
        command.kill()
    assert newest_step(tmp_path / "run") > 0 and "launch.grace" not in command.output


def test_a_cache_that_is_being_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that jumps ahead makes a writer's folder old; that of a killed one goes."""
    killed = tmp_path / "cache" / ".other.killed.tmp"
    killed.mkdir(parents=True)
    with filled_folder(tmp_path / "cache" / "first", lambda: True) as work:
        (work / "rows").write_bytes(b"1")
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() + WEEKS)
        write_cache(tmp_path / "cache" / "second", lambda place: {})
        assert (work / "rows").exists() and not killed.exists()
    assert (tmp_path / "cache" / "first" / "rows").exists()
