"""What the machine refuses is one line: which file, what to do, what is kept."""

import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from captured_warnings import listening
from chaos.ground import fill, small_disk
from exported import exported
from net_hosts import Impossible

from shoal.cli.machine import explain
from shoal.cli.main import app
from shoal.serving.artifact.files import hidden_of
from shoal.training.run_folder import RunFolder
from shoal.training.trackers.tracker import Trackers

SMALL = (
    *("--data.name=synthetic", "--data.synthetic.users=90", "--data.synthetic.items=60"),
    "--data.synthetic.interactions=2000",
)
QUICK = ("--train.epochs=1", "--run.progress=false", "--run.trackers=[]")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk without room."""
    try:
        with small_disk(tmp_path / "disk") as found:
            (found / "run" / "checkpoints" / "step-000000001").mkdir(parents=True)
            RunFolder(found / "run").append_metrics({"epoch": 0})
            fill(found)
            yield found
    except Impossible as error:
        pytest.skip(f"no disk of its own: {error}")


def train(*words: str | Path, most: int | None = None) -> subprocess.CompletedProcess[str]:
    """`shoal train`; no file that it writes may have more than `most` bytes."""

    def limit() -> None:
        if most is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    command = [sys.executable, "-m", "shoal", "train", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=limit)


def test_writers_of_a_run_name_their_file(disk: Path) -> None:
    folder = RunFolder(disk / "run")
    long = {"epoch": 1, "text": "x" * 10_000}
    written = {
        "config.yaml": lambda: folder.write_config("x" * 10_000),
        "result.json": lambda: folder.write_result(long),
        "metrics.jsonl": lambda: folder.append_metrics(long),
        ".lock": lambda: folder.locked().__enter__(),
    }
    for name, write in written.items():
        with pytest.raises(OSError) as refused:
            write()
        line = explain(refused.value) or ""
        assert f"cannot write {folder.path / name}: No space left on device (0.0 MB free)" in line
        assert "remove something there" in line and "\n" not in line
    assert (folder.path / "metrics.jsonl").read_text() == '{"epoch": 0}\n'  # no part of a line


@pytest.mark.filterwarnings("error")
def test_curves_do_not_end_a_run(disk: Path) -> None:
    with listening() as said, Trackers(["tensorboard"]) as trackers:
        trackers.begin({}, disk)
        for epoch in range(3):
            trackers.epoch({"epoch": epoch, "loss": 1.0})
        trackers.end({})
    assert [line for line in said if "No space left on device; the run goes on without" in line]


def test_an_export_names_where_it_writes(disk: Path) -> None:
    run = exported()["BPR"].parent / "BPR-run"
    (disk / "filler").unlink()
    with open(disk / "filler", "wb") as file:  # room for the beginning of it
        file.write(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize - (1 << 14)))
    with pytest.raises(OSError) as refused:
        app(["export", str(run), "--to", str(disk / "model")], standalone_mode=False)
    line = explain(refused.value) or ""
    assert line.startswith(f"cannot write {disk}") and "No space left on device" in line
    assert not (disk / "model").exists() and not hidden_of(disk / "model").exists()


def test_a_run_that_may_not_write_ends_with_one_line(tmp_path: Path) -> None:
    done = train(*SMALL, *QUICK, "--output", tmp_path / "run", most=0)
    assert done.returncode == 2, done.stderr
    line = f"error: cannot write {tmp_path}/run/.lock: File too large; raise the limit on the size"
    assert done.stderr.startswith(line) and len(done.stderr.splitlines()) == 1


def test_what_does_not_fit_into_memory_ends_with_one_line(tmp_path: Path) -> None:
    many = [f"--data.random.{what}=1099511627776" for what in ("interactions", "users", "items")]
    done = train("--dataset=random", *many, *QUICK, "--output", tmp_path / "run")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: out of memory: Unable to allocate ")
    assert "no checkpoint was saved yet" in done.stderr and len(done.stderr.splitlines()) == 1


def test_what_torch_cannot_allocate_is_memory_too() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 55, dtype=torch.uint8)
    assert "out of memory: DefaultCPUAllocator" in (explain(refused.value) or "")
    assert explain(RuntimeError("something else")) is None


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EDQUOT, "cannot write FILE: .*name a place on another disk"),
        (errno.EROFS, "cannot write FILE: .*can be written to"),
        (errno.EACCES, "cannot use FILE: .*mode or owner"),
        (errno.EMFILE, "cannot use FILE: .*ulimit -n"),
        (errno.ENOENT, "cannot use FILE: No such file or directory$"),
    ],
)
def test_each_cause_has_its_remedy(number: int, remedy: str) -> None:
    line = explain(OSError(number, os.strerror(number), "FILE")) or ""
    assert re.search(remedy, line)
    assert explain(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")) is None
