"""TorchX starts Shoal's jobs, by components of our own; test_pages.py has TorchRec's commands."""

from __future__ import annotations

import os
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import ROOT, finish, result
from ranks import free_port
from torchx_runs import CLICKS, COMPONENT, need_torchx, torchx

need_torchx()


def assert_equal(mine: dict[str, Any], alone: dict[str, Any]) -> None:
    assert mine["test"] == pytest.approx(alone["test"], rel=0, abs=1e-5)
    assert mine["best_valid"] == pytest.approx(alone["best_valid"], rel=0, abs=1e-5)


@pytest.mark.slow
def test_train_on_two_hosts(short: Path, alone: Path, tmp_path: Path) -> None:
    command = torchx(
        *("run", "-s", "local_cwd", f"{COMPONENT}:train", "-j", "2x1", "--port", free_port()),
        *("--", short, f"--output={tmp_path / 'run'}"),
        cwd=tmp_path,
    )
    assert command.wait() == 0, command.output
    assert result(tmp_path / "run")["world_size"] == 2
    assert_equal(result(tmp_path / "run"), result(alone))


@pytest.mark.slow
def test_servers_and_workers(tmp_path: Path) -> None:
    finish("train", *CLICKS, "--output", tmp_path / "alone", cwd=tmp_path)
    command = torchx(
        *("run", "-s", "local_cwd", f"{COMPONENT}:ps", "--workers", "2", "--servers", "1"),
        *("--port", free_port(), "--", *CLICKS, f"--output={tmp_path / 'run'}"),
        cwd=tmp_path,
    )
    assert command.wait() == 0, command.output
    assert result(tmp_path / "run")["world_size"] == 2
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["strategy"]["name"] == "ps" and len(config["strategy"]["ps"]["addresses"]) == 1
    assert_equal(result(tmp_path / "run"), result(tmp_path / "alone"))


def test_a_job_that_fails(tmp_path: Path) -> None:
    command = torchx(
        *("run", "-s", "local_cwd", f"{COMPONENT}:ps", "--", *CLICKS, "--train.epoch=2"),
        cwd=tmp_path,
    )
    assert command.wait() == 1, command.output
    assert "did you mean train.epochs?" in command.output and "FAILED" in command.output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_torchx_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    """Replicas are in sessions of their own; none is left (which the fixture of all tests sees)."""
    words = [word for word in CLICKS if not word.startswith("--train.epochs")]
    words += ["--train.epochs=10000", "--train.patience=10000", f"--output={tmp_path / 'run'}"]
    command = torchx(
        *("run", "-s", "local_cwd", f"{COMPONENT}:ps", "--workers", "2", "--port", free_port()),
        *("--", *words),
        cwd=tmp_path,
    )
    command.until("an epoch", lambda: "epoch 1 training" in command.output)
    os.kill(command.process.pid, number)
    assert command.wait() != 0


def test_kubernetes(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes", reason="the package kubernetes is not installed")
    command = torchx(
        *("run", "--dryrun", "--workspace=", "-s", "kubernetes", "--scheduler_args", "queue=test"),
        *(f"{COMPONENT}:ps", "--workers", "2", "--servers", "1", "--image", "shoal:1"),
        *("--cpu", "3", "--server_memMB", "9000", "--port", "6000"),
        *("--", "config.yaml", "--strategy.ps.keys=/keys"),
        cwd=tmp_path,
    )
    assert command.wait() == 0, command.output
    request = command.output.partition("=== SCHEDULER REQUEST ===")[2]
    job = yaml.safe_load(request.partition("\ntorchx ")[0])  # a line of its log may follow
    assert job["spec"]["queue"] == "test"
    assert "svc" in job["spec"]["plugins"]  # it sets VC_SERVER_0_HOSTS and makes the names known
    tasks = {
        task["name"]: task["template"]["spec"]["containers"][0] for task in job["spec"]["tasks"]
    }
    assert list(tasks) == ["server-0", "worker-0", "worker-1"]
    end = ["--workers=2", "--servers=1", "--port=6000"]
    end += ["--", "config.yaml", "--strategy.ps.keys=/keys"]
    for name, task in tasks.items():
        role, index = name.split("-")
        begin = [
            "python",
            "-u",
            "-m",
            "shoal.cli.replica",
            f"--role={role}",
            f"--index={index}",
        ]
        assert task["command"] == begin + end and task["image"] == "shoal:1"
    assert tasks["worker-1"]["resources"]["limits"]["cpu"] == "3000m"
    assert tasks["server-0"]["resources"]["limits"]["memory"] == "9000M"


def test_components_are_registered_beside_those_of_torchx(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["torchx.components"]
    installed = tmp_path / "site" / "stand_in-0.dist-info"  # as installing the project makes it
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-in\nVersion: 0\n")
    lines = [f"{name} = {module}" for name, module in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[torchx.components]", *lines, ""]))
    command = torchx("builtins", cwd=tmp_path, PYTHONPATH=f"{ROOT}:{tmp_path / 'site'}")
    assert command.wait() == 0, command.output
    for name in ("shoal.train", "shoal.ps", "dist.ddp", "utils.echo"):
        assert name in command.output
    assert command.output.count("shoal.") == 2
