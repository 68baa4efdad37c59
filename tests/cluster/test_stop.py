"""SIGTERM in the midst of training: a checkpoint of that very step is written first."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from cluster_configs import LONG, MODELS, write_config
from commands import errors, finish, newest_step, shoal
from test_resume import assert_same, long_run

pytestmark = pytest.mark.slow
RARELY = "--checkpoint.every_steps=0"


@pytest.mark.parametrize("strategy", ["single", "sharded", "ps"])
def test_sigterm_saves_and_resume_goes_on(tmp_path: Path, strategy: str) -> None:
    config, reference = long_run(tmp_path, "BPR")
    folder = tmp_path / "run"
    words: list[str | Path] = ["train", config, f"--strategy.name={strategy}"]
    words += [] if strategy == "single" else ["--nproc=2"]
    if strategy == "ps":
        words = ["launch", "--worker_num=2", "--server_num=1", config]
    words += ["--output", folder, RARELY]
    command = shoal(*words, cwd=tmp_path)
    command.until("an epoch", lambda: newest_step(folder) > 0)
    os.kill(command.process.pid, signal.SIGTERM)
    assert command.wait() == 143, command.output
    assert "Traceback" not in command.output and not errors(command.output)
    assert command.output.count("stopped by SIGTERM; what was saved can be continued") == 1
    (step,) = re.findall(r"stopped by SIGTERM; saved at step (\d+)", command.output)
    assert newest_step(folder) == int(step)
    output = finish(*words, "--resume", cwd=tmp_path)
    assert f"(step {step})" in output
    assert_same(folder, reference, 1e-5)


def test_no_time_to_save(tmp_path: Path) -> None:
    more = {"train.epochs": 100000, "launch.grace": 0}
    config = write_config(tmp_path / "c.yaml", MODELS["BPR"], LONG, more)
    words = ("train", config, "--nproc=2", RARELY, "--output", tmp_path / "run")
    command = shoal(*words, cwd=tmp_path)
    command.until("an epoch", lambda: newest_step(tmp_path / "run") > 0)
    os.kill(command.process.pid, signal.SIGTERM)
    assert command.wait() == 143, command.output
    assert "saved at step" not in command.output and not errors(command.output)
