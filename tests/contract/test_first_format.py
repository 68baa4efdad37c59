"""Runs that were half trained by the first release's code go on to the numbers it ended with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "first_format"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
SERVERS = ["launch", "--worker_num=2", "--server_num=1"]


LONG = ("bpr-ddp", "bert4rec-sharded", "dnn-ps", "dnn-rules")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in EXPECTED],
)
def test_a_checkpoint_of_the_first_format_goes_on_to_the_same_numbers(
    name: str, tmp_path: Path
) -> None:
    shutil.copytree(FOLDER / name, tmp_path / "run")
    shutil.copy(FOLDER / "clicks.txt", tmp_path)
    command = SERVERS if name == "dnn-ps" else ["train"]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *command, "--resume", "--output", "run"],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # its numbers are of processes on CPUs
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [2, 3]
    for line, expected in zip(lines, EXPECTED[name]):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert line["valid"] == pytest.approx(expected["valid"], rel=1e-6)
