"""Workers that are killed, leave and join while the run goes on: every sample counts once.

The model counts: every sample lowers two rows of its own by 1, which lie on any of the servers, so
after some epochs each row says how often its sample was applied there.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cluster_configs import write_config
from commands import Command, errors, newest_step, processes, result, shoal
from safetensors.torch import load_file

from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.runs.run import resolve

pytestmark = pytest.mark.slow
MODEL = '''
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import Model, Output


class Count(Model):
    """Every sample lowers its rows by 1; slowly while there is a file that says so."""

    @dataclass
    class Options(Model.Options):
        place: str = ""

    def __init__(self, options, facts):
        super().__init__(options, facts)
        self.pairs = facts.num_users * facts.num_items
        table = Table("pair", 1, 2 * self.pairs, Init("constant", 0.0))
        self.embed = Embeddings(pair=table)
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        place = Path(self.options.place)
        with open(place / f"steps-{os.getpid()}", "a") as file:
            file.write(".")
        if (place / "slowly").exists():
            time.sleep(0.3)
        pair = batch.tensor("user_id") * self.facts.num_items + batch.tensor("item_id")
        rows = self.embed.rows("pair", torch.cat([pair, self.pairs + pair]))
        return Output(rows.sum() + 0 * self.weight.sum(), 1)
'''
LONG = 600.0  # seconds: many processes start, on a machine that may have much else to do
KEYS = {
    "train.batch_size": 16,
    "train.epochs": 2,
    "train.eval_every": 0,
    "train.negatives": None,
    "train.optimizer.name": "sgd",
    "train.optimizer.lr": 1.0,
    "strategy.ps.elastic": True,
    "strategy.ps.timeout": 30.0,
    "launch.grace": 120.0,
}


def make_config(place: Path, mode: str, **more: Any) -> Path:
    (place / "count.py").write_text(MODEL)
    (place / "slowly").touch()
    names = {"model": f"{place / 'count.py'}:Count", "model.place": str(place)}
    return write_config(
        place / "c.yaml", KEYS, names, {"strategy.ps.mode": mode, "strategy.ps.geo_step": 4}, more
    )


def steps(place: Path, pid: int) -> int:
    file = place / f"steps-{pid}"
    return len(file.read_text()) if file.exists() else 0


def counts(place: Path, folder: Path) -> tuple[Counter[int], dict[int, float]]:
    """How often each pair is a sample of an epoch, and by how much its two rows were lowered."""
    config = resolve(
        [place / "c.yaml"], [], {"strategy.name": "single", "strategy.ps.elastic": False}
    ).config
    parts = build(config, World())
    reader, items = parts.reader, parts.model.facts.num_items
    pairs = Counter((reader.users.astype("int64") * items + reader.items).tolist())  # type: ignore[attr-defined]
    found: dict[int, float] = {}
    (newest,) = sorted((folder / "checkpoints").glob("step-*"))[-1:]
    for file in newest.glob("rows-pair-*"):
        tensors = load_file(file)
        found |= dict(zip(tensors["ids"].tolist(), (-tensors["values"][:, 0]).tolist()))
    total = parts.model.pairs  # type: ignore[operator]
    assert found.keys() == {one + off for one in pairs for off in (0, total)}
    assert all(found[one] == pytest.approx(found[one + total]) for one in pairs)
    return pairs, {one: found[one] for one in pairs}


def started(place: Path, config: Path, folder: Path, workers: int) -> Command:
    """A run whose workers are all at work."""
    numbers = (f"--worker_num={workers}", "--server_num=2")
    command = shoal("launch", *numbers, "-m", config, "--output", folder, cwd=place)

    def all_work() -> bool:
        files = list(place.glob("steps-*"))
        return len(files) == workers and all(file.stat().st_size > 2 for file in files)

    command.until("steps of all", all_work, LONG)
    return command


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_killed_left_and_joined(tmp_path: Path, mode: str) -> None:
    epochs = 2 if mode == "async" else 1
    config, folder = make_config(tmp_path, mode, **{"train.epochs": epochs}), tmp_path / "run"
    command = started(tmp_path, config, folder, 3)
    pids = command.ranks()
    later = shoal("train", "--join", folder, "--trust", cwd=tmp_path)
    os.kill(pids[1], signal.SIGKILL)
    command.until("word of it", lambda: f"(pid {pids[1]}) was killed by signal 9" in command.output)
    os.kill(pids[2], signal.SIGTERM)
    command.until("its end", lambda: pids[2] not in command.ranks().values())
    later.until("its steps", lambda: steps(tmp_path, later.process.pid) > 2, LONG)
    (tmp_path / "slowly").unlink()
    assert command.wait(LONG) == 0, command.output
    assert later.wait(LONG) == 0, later.output
    assert "batches" in command.output and "of worker" in command.output  # that went to others
    assert "Traceback" not in command.output + later.output and not errors(command.output)
    assert processes() == [] and result(folder)["epochs"] == epochs
    pairs, lowered = counts(tmp_path, folder)
    if mode == "async":
        assert lowered == {one: epochs * n for one, n in pairs.items()}
    else:  # by 1 over the number of workers there were
        shares = {round(lowered[one], 4) for one, n in pairs.items() if n == 1}
        assert shares <= {1.0, 0.5, round(1 / 3, 4)}, shares


@pytest.mark.parametrize("victim", ["launcher", "workers"])
def test_resumed_with_other_workers(tmp_path: Path, victim: str) -> None:
    """Told to stop, the run saves where it is; killed, it goes on from its last checkpoint."""
    config = make_config(tmp_path, "async", **{"checkpoint.every_steps": 20})
    folder = tmp_path / "run"
    command = started(tmp_path, config, folder, 2)
    command.until("a checkpoint", lambda: newest_step(folder) >= 20)
    if victim == "launcher":
        os.kill(command.process.pid, signal.SIGTERM)
        assert command.wait(LONG) == 143, command.output
        assert "stopped by SIGTERM; saved at step" in command.output
    else:
        for pid in command.ranks().values():
            os.kill(pid, signal.SIGKILL)
        assert command.wait(LONG) == 2, command.output
        assert "all workers have left or were lost" in command.output
    assert "Traceback" not in command.output and processes() == []
    (tmp_path / "slowly").unlink()
    words = ("--worker_num=1", "--server_num=1", "--resume", folder, "--trust")
    command = shoal("launch", *words, cwd=tmp_path)
    assert command.wait(LONG) == 0 and "resuming" in command.output, command.output
    pairs, lowered = counts(tmp_path, folder)
    assert lowered == {one: 2 * n for one, n in pairs.items()}


def test_another_config_is_refused(tmp_path: Path) -> None:
    config, folder = make_config(tmp_path, "async"), tmp_path / "run"
    command = started(tmp_path, config, folder, 1)
    other = shoal("train", "--join", folder, "--trust", "--train.epochs=9", cwd=tmp_path)
    assert other.wait(LONG) == 2, other.output
    assert "train.epochs is 9 here and 2 there; give every worker the same" in other.output
    (tmp_path / "slowly").unlink()
    assert command.wait(LONG) == 0, command.output
    assert result(folder)["epochs"] == 2
