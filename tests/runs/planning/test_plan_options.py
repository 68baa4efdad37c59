"""`shoal plan` with --simulate, --html, --launch and --output."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from shoal.command.cli import app
from shoal.training.run_folder import start_logging

SMALL = [
    *("--model=BPR", "--data.name=planted", "--data.planted.users=60", "--data.planted.items=40"),
    *("--data.planted.interactions=1200", "--run.log_level=error"),
]
CLUSTER = ["--cluster", "x86-16", "--hosts", "4"]


def call(*words: str | Path, status: int = 0) -> str:
    start_logging("error")  # a test before may have asked for more
    result = CliRunner().invoke(app, ["plan", *map(str, words)])
    assert result.exit_code == status, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_simulated_failures():
    told = call(*SMALL, *CLUSTER, "--train.epochs=7", "--simulate")
    assert re.search(r"^simulated +7 epochs on \d+ hosts?", told, re.M) and "by Young" in told
    found = json.loads(call(*SMALL, *CLUSTER, "--simulate", "--json"))["simulated"]
    assert found["failures"]["seconds"] >= 0.999 * found["job"]["work"] and found["daly"] > 0


def test_a_page_and_a_job(tmp_path: Path):
    page, job = tmp_path / "plan.html", tmp_path / "job.yaml"
    words = [*SMALL, *CLUSTER, "--html", page, "--launch", "k8s", "--output", job]
    assert call(*words).splitlines() == [f"written: {page}", f"written: {job}"]
    assert "<h2>Roofline</h2>" in page.read_text()
    (hosts,) = yaml.safe_load(job.read_text())["spec"]["replicatedJobs"]
    command = hosts["template"]["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    assert "--data.planted.users=60" in command and "--strategy.name=" in command


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
        (["--measure", "--json", "--html", "p.html"], "--measure goes without --json, --html"),
        (["--compare", "run", "--simulate"], "--compare goes without --simulate"),
        ([*SMALL, *CLUSTER, "--launch", "slum"], "did you mean slurm"),
        ([*SMALL, *CLUSTER, "--html", "nowhere/plan.html"], "there is no folder nowhere"),
        (["--published", "hstu:512", "--cluster", "DGX-H100", "--launch", "ray"], "needs a config"),
        (["--model=Pop", *SMALL[1:], "--html", "p.html"], "need steps"),
    ],
)
def test_what_is_refused(words: list[str], wanted: str):
    result = CliRunner().invoke(app, ["plan", *words])
    told = " ".join(f"{result.output} {result.exception}".replace("│", " ").split())
    assert result.exit_code != 0 and wanted in told, told
