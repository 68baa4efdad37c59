"""python -m shoal.launch: a script as many processes; exit status and culprit where one fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import free_port

SCRIPT = """
import os
import signal
import sys
import time

import torch

import shoal

torch.manual_seed(1)
strategy = shoal.CollectiveStrategy(device="cpu")
with strategy.scope():
    with strategy.embedding_scope():
        items = torch.nn.Embedding(40, 4)
    head = torch.nn.Linear(4, 1)
optimizer = strategy.optimizer(torch.optim.Adagrad(head.parameters(), lr=0.1))
batches = [torch.arange(k, k + 7) % 40 for k in range(20)]
losses = []
for number, ids in enumerate(strategy.split(batches)):
    if strategy.rank == strategy.world_size - 1 and number == 5:
        if "raise" in sys.argv:
            raise KeyError("a fault of the script")
        if "kill" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in sys.argv:
            time.sleep(1000)
        if "exit" in sys.argv:
            sys.exit(7)
    optimizer.zero_grad()
    loss = (head(items(ids)).squeeze(1) - (ids % 2)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(strategy.mean(loss))
if strategy.rank == 0:
    print("LOSSES", losses)
"""
LAUNCH = ["-m", "shoal.launch", "--nproc=2"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]


def run(
    tmp_path: Path, *words: str, how: list[str] = LAUNCH, **variables: str
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, *how, str(script), *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


def losses(done: subprocess.CompletedProcess[str]) -> list[float]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("LOSSES")[2])


@pytest.mark.slow
def test_the_losses_are_those_of_the_script_alone(tmp_path: Path) -> None:
    alone = losses(run(tmp_path, how=[]))
    assert losses(run(tmp_path, COLLECTIVE_STRATEGY="hb")) == pytest.approx(alone, rel=1e-4)
    assert losses(run(tmp_path, how=TORCHRUN)) == pytest.approx(alone, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status", "told"),
    [
        ("raise", 1, "KeyError: 'a fault of the script'"),
        ("kill", 128 + signal.SIGKILL, "killed by signal 9 (SIGKILL)"),
        ("exit", 7, "exit status 7"),
    ],
)
def test_the_culprit_is_told(tmp_path: Path, how: str, status: int, told: str) -> None:
    done = run(tmp_path, how)
    assert done.returncode == status, done.stderr
    assert "rank 1 on host" in done.stderr and told in done.stderr
    assert done.stderr.count("error:") == 1


@pytest.mark.slow
def test_hosts_may_run_different_numbers_of_processes(tmp_path: Path) -> None:
    alone = losses(run(tmp_path, how=[]))
    place = ["--world_size=3", "--hosts=2", "--ip=127.0.0.1", f"--port={free_port()}"]
    line = [sys.executable, "-m", "shoal.launch", *place]
    script = str(tmp_path / "script.py")
    second = subprocess.Popen([*line, "--nproc=1", "--group_offset=2", "--host_index=1", script])
    assert losses(run(tmp_path, how=[*line[1:], "--nproc=2"])) == pytest.approx(alone, rel=1e-4)
    assert second.wait(600) == 0


@pytest.mark.slow
def test_a_process_that_hangs_is_told_with_its_stack(tmp_path: Path) -> None:
    done = run(tmp_path, "hang", how=[*LAUNCH, "--hang_timeout=8"])
    assert done.returncode > 0 and "rank 1 on host" in done.stderr, done.stderr
    assert "script.py" in done.stderr  # where it sleeps
    assert "--resume" not in done.stderr


@pytest.mark.slow
def test_what_cannot_be_launched_is_told_at_once(tmp_path: Path) -> None:
    done = run(tmp_path, COLLECTIVE_STRATEGY="nonsense")
    assert done.returncode == 2 and "COLLECTIVE_STRATEGY is 'nonsense'" in done.stderr
    done = run(tmp_path, how=[*LAUNCH[:2], "nothing.py"])
    assert done.returncode == 2 and "there is no script nothing.py" in done.stderr
