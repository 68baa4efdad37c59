"""Commands below limits on memory: one line that says it, instead of a library's abort."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.config.schema import DataSection
from shoal.data import bounded_files
from shoal.data.loading.load import load_dataset
from shoal.kernels.host_memory import FreeMemory

COMMANDS = [
    ["train", "r.csv", "--model=BPR", "--train.epochs=1"],
    ["data", "describe", "r.csv"],
    ["prepare", "r.csv", "--to", "prepared"],
    ["quickstart", "r.csv"],
    ["sweep", "r.csv", "--models=BPR,Pop"],
    ["arena", "arena.yaml"],
    ["tune", "r.csv", "--output=study"],
    ["report", "run"],
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = "".join(f"{k % 30},{k % 17},{1_700_000_000 + k}\n" for k in range(600))
    (tmp_path / "r.csv").write_text(f"user_id,item_id,timestamp\n{rows}")
    return tmp_path / "r.csv"


@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: args[0])
@pytest.mark.parametrize("limit", [300_000_000, 1_500_000_000])
def test_a_low_limit_on_address_space_is_one_line(args: list[str], limit: int, table: Path) -> None:
    """Polars and torch abort there, with thousands of lines of their allocator."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    done = subprocess.run(
        [sys.executable, "-m", "shoal", *args],
        cwd=table.parent,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        preexec_fn=bound,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 2, done.stderr
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: this command's libraries reserve")
    assert "ulimit -v unlimited" in line and "MemoryMax" in line
    assert list(table.parent.iterdir()) == [table]


def read(path: Path) -> int:
    section = {"path": str(path.parent), "files": {"inter": path.name}, "cache": False}
    return load_dataset(DataSection.model_validate(section), 1).num_inter


def test_a_file_larger_than_memory_is_refused(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = FreeMemory(table.stat().st_size - 1, "in this container")
    monkeypatch.setattr(bounded_files, "free_memory", lambda: free)
    with pytest.raises(ValueError, match=r"r\.csv has .* in this container .*shoal prepare"):
        read(table)


def test_a_file_that_may_not_fit_is_named(
    table: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = FreeMemory(3 * table.stat().st_size, "in this container")
    monkeypatch.setattr(bounded_files, "free_memory", lambda: free)
    with caplog.at_level(logging.WARNING):
        assert read(table) == 600
    assert any("should this process be killed, `shoal prepare" in one for one in caplog.messages)
