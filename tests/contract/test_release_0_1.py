"""Runs that release 0.1.0 has half trained continue to the numbers it ended with, and are read."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "release_0_1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
SERVERS = ["launch", "--worker_num=2", "--server_num=1"]


def shoal(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # its numbers are of processes on CPUs
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "bpr-single" else pytest.mark.slow)
        for name in EXPECTED
    ],
)
def test_a_run_continues_to_the_same_numbers(name: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER / name, tmp_path / "run")
    shutil.copy(FOLDER / "clicks.txt", tmp_path)
    command = SERVERS if name == "dnn-ps" else ["train"]
    assert "1 checkpoint" in shoal(tmp_path, "checkpoint", "verify", "run")
    shoal(tmp_path, *command, "--resume", "--output", "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [2, 3]
    for line, expected in zip(lines, EXPECTED[name]):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert line["valid"] == pytest.approx(expected["valid"], rel=1e-6)
