"""`shoal plan` as a command, and `--compare` beside a run that trained."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.planning.comparison_with_run import measured
from shoal.training.run_folder import start_logging

SMALL = [
    *(
        "--model=BPR",
        "--data.name=synthetic",
        "--data.synthetic.users=60",
        "--data.synthetic.items=40",
    ),
    *("--data.synthetic.interactions=1200", "--run.progress=false", "--run.log_level=error"),
]


def call(*words: str | Path, status: int = 0) -> str:
    start_logging("error")  # a test before may have asked for more
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == status, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_memory_and_time_of_a_config():
    told = call("plan", *SMALL)
    assert "each process holds, 1 of them on this machine:" in told
    assert re.search(r"^single +1 ", told, re.M) and "keys of this plan:" in told


STRATEGIES = {
    "ps": ["--launch.nproc=2", "--launch.servers=1", "--strategy.ps.mode=async"],
    "sharded": ["--launch.nproc=4", "--strategy.groups=2", "--strategy.wire_dtype=float16"],
    "ddp": ["--launch.nproc=2"],
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_configs_of_many_processes(name: str):
    told = call("plan", *SMALL, f"--strategy.name={name}", *STRATEGIES[name])
    assert "keys of this plan:" in told


def test_on_a_cluster_file(tmp_path: Path):
    file = tmp_path / "cluster.yaml"
    file.write_text("hosts: 2\nhost: DGX-A100\nbetween: {kind: ethernet, bandwidth: 100Gb/s}\n")
    found = json.loads(call("plan", *SMALL, "--cluster", file, "--json"))
    assert found["model"] == "BPR" and found["cluster"]["devices"] == 16
    assert {one["layout"]["strategy"] for one in found["plans"]} >= {"single", "ddp", "sharded"}


def test_compared_with_a_run(tmp_path: Path):
    run = tmp_path / "run"
    call("train", *SMALL, "--train.epochs=3", "--run.threads=1", "--output", run)
    ms, phases = measured(run)
    assert ms > 0 and set(phases) == {"forward_backward", "update", "rest"}
    assert sum(phases.values()) == pytest.approx(ms, rel=0.5)  # medians of each
    told = call("plan", "--compare", run)
    assert "rows read, forward, backward" in told and "predicted to lie between" in told
    kept = json.loads((run / "plan.json").read_text())
    assert kept["measured_ms"] == pytest.approx(ms)
    assert kept["error"] == pytest.approx(kept["predicted_ms"] / ms - 1)
    call("report", run)
    assert "Predicted and measured" in (run / "report.html").read_text()


def test_a_run_that_trained_nothing(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 0, "step": 0, "train_seconds": 1}\n{"ep')
    with pytest.raises(ValueError, match="nothing to compare"):
        measured(tmp_path)
