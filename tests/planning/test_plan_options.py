"""`shoal plan` with --launch and --output."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.training.run_folder import start_logging

SMALL = [
    *(
        "--model=BPR",
        "--data.name=synthetic",
        "--data.synthetic.users=60",
        "--data.synthetic.items=40",
    ),
    *("--data.synthetic.interactions=1200", "--run.log_level=error"),
]
CLUSTER = ["--cluster", "x86-16", "--hosts", "4"]


def call(*words: str | Path, status: int = 0) -> str:
    start_logging("error")  # a test before may have asked for more
    result = CliRunner().invoke(app, ["plan", *map(str, words)])
    assert result.exit_code == status, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_a_job_is_written_to_a_file(tmp_path: Path):
    job = tmp_path / "job.yaml"
    words = [*SMALL, *CLUSTER, "--launch", "k8s", "--output", job]
    assert call(*words).splitlines() == [f"written: {job}"]
    (hosts,) = yaml.safe_load(job.read_text())["spec"]["replicatedJobs"]
    command = hosts["template"]["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    assert "--data.synthetic.users=60" in command and "--strategy.name=" in command


def test_a_job_has_the_hosts_of_the_target():
    """What is printed is a script that starts the config with the plan's keys."""
    words = [*SMALL, "--cluster", "x86-16", "--target", "1 epoch in 1 h", "--launch=ray"]
    told = shlex.split(call(*words, "--run.output=/shared/run"), comments=True)
    assert told[:6] == ["ray", "job", "submit", "--", "shoal", "train"]
    assert "--output=/shared/run" in told and "--model=BPR" in told
    assert "--run.output=/shared/run" not in told


@pytest.mark.parametrize(
    "words, wanted",
    [
        ([*SMALL, "--output", "x"], "--output is for --measure and --launch"),
        (["--measure", "--json", "--launch", "ray"], "--measure goes without --json, --launch"),
        (["--compare", "run", "--launch", "ray"], "--compare goes without --launch"),
        ([*SMALL, *CLUSTER, "--launch", "slum"], "did you mean slurm"),
        (
            [*SMALL, *CLUSTER, "--launch", "ray", "--output", "nowhere/job.sh"],
            "there is no folder nowhere",
        ),
        (["--model=Pop", *SMALL[1:], "--launch", "ray"], "needs steps"),
    ],
)
def test_what_is_refused(words: list[str], wanted: str):
    result = CliRunner().invoke(app, ["plan", *words])
    told = " ".join(f"{result.output} {result.exception}".replace("│", " ").split())
    assert result.exit_code != 0 and wanted in told, told
