"""Jobs on a real Slurm, started on this machine for the test: by sbatch, and through TorchX."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import MARK, ROOT, finish, result
from ranks import free_port
from slurm import NoSlurm, Slurm
from torchx_runs import CLICKS, COMPONENT, need_torchx, torchx

pytestmark = pytest.mark.slow
JOB_SECONDS = 150.0
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output={place}/slurm-%j.out
export PYTHONPATH={root} {mark} ip=$(scontrol show hostnames | head -n 1)
srun bash -c '{python} -m shoal train {config} --output={place}/run --nproc=1 \\
    --ip=$ip --port={port} --world_size=$SLURM_NNODES --group_offset=$SLURM_NODEID'
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    try:
        with Slurm() as running:
            yield running
    except NoSlurm as error:
        pytest.skip(str(error))


def finished(slurm: Slurm, job: str, place: Path) -> None:
    """Wait for a job, which must do well."""
    states = slurm.wait(job, JOB_SECONDS)
    told = "\n".join(file.read_text() for file in sorted(place.glob(f"slurm-{job}*")))
    assert states == {"COMPLETED"}, f"{states}\n{told}"


def run(slurm: Slurm, place: Path, *words: str | Path) -> None:
    """Submit a job through TorchX and wait for it."""
    need_torchx()
    command = torchx("run", "-s", "slurm", *words, cwd=place, **slurm.environment)
    assert command.wait() == 0, command.output
    found = re.search(r"slurm://torchx/(\d+)", command.output)
    assert found, command.output
    finished(slurm, found[1], place)


def test_sbatch(slurm: Slurm, short: Path, alone: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    values = {"place": tmp_path, "root": ROOT, "mark": MARK, "python": sys.executable}
    file.write_text(SCRIPT.format(**values, config=short, port=free_port()))
    (job,) = slurm.ask("sbatch", "--parsable", str(file))
    finished(slurm, job, tmp_path)
    assert result(tmp_path / "run")["world_size"] == 2
    assert result(tmp_path / "run")["test"] == pytest.approx(result(alone)["test"], rel=0, abs=1e-6)


def test_train_on_two_nodes(slurm: Slurm, short: Path, alone: Path, tmp_path: Path) -> None:
    words = ["-j", "2x1", "--port", str(free_port()), "--", short, f"--output={tmp_path / 'run'}"]
    run(slurm, tmp_path, f"{COMPONENT}:train", *words)
    assert result(tmp_path / "run")["world_size"] == 2
    assert result(tmp_path / "run")["test"] == pytest.approx(result(alone)["test"], rel=0, abs=1e-6)


def test_servers_and_workers(slurm: Slurm, tmp_path: Path) -> None:
    finish("train", *CLICKS, "--output", tmp_path / "alone", cwd=tmp_path)
    words = ["--workers", "2", "--servers", "1", "--port", str(free_port()), "--", *CLICKS]
    run(slurm, tmp_path, f"{COMPONENT}:ps", *words, f"--output={tmp_path / 'run'}")
    mine, single = result(tmp_path / "run"), result(tmp_path / "alone")
    assert mine["world_size"] == 2
    assert mine["test"] == pytest.approx(single["test"], rel=0, abs=1e-5)
    (listening,) = tmp_path.glob("slurm-*-server-0.out")
    assert "server 0 listens on 127.0.0." in listening.read_text()
