"""A disk that fills while a checkpoint is written: what was whole stays, and the run continues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chaos.ground import fill, small_disk
from net_hosts import Impossible

from shoal.cli.main import app
from shoal.training.checkpoint.writing import CheckpointError, read

# A checkpoint of 450 kB: rows, and two moments of each.
CONFIG = (
    *("--dataset=synthetic", "--model=BPR", "--model.embedding_size=64", "--epochs=3"),
    *("--data.synthetic.users=400", "--data.synthetic.items=180"),
    *("--data.synthetic.interactions=4000", "--run.progress=false", "--run.tensorboard=false"),
)


def train(*words: str) -> None:
    app(["train", *words], standalone_mode=False)


def test_a_disk_fills_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "disk") as disk:
            _fill_and_continue(disk, tmp_path)
    except Impossible as error:
        pytest.skip(f"no disk of its own: {error}")


def _fill_and_continue(disk: Path, tmp_path: Path) -> None:
    train(*CONFIG, f"--output={tmp_path}/whole")
    sample = max((tmp_path / "whole" / "checkpoints").glob("step-*"))
    size = sum(file.stat().st_size for file in sample.iterdir())
    # Room for one checkpoint, and for a part of the next.
    fill(disk).write_bytes(b"")
    with open(disk / "filler", "wb") as file:
        file.write(bytes((8 << 20) - int(1.6 * size)))
    run = disk / "run"
    with pytest.raises(
        CheckpointError, match=r"No space left on device\. Those before it are"
    ) as refused:
        train(*CONFIG, f"--output={run}")
    assert str(run / "checkpoints") in str(refused.value) and "\n" not in str(refused.value)
    (kept,) = (run / "checkpoints").glob("step-*")
    read(kept)  # whole, by its checksums
    (disk / "filler").unlink()
    train("--resume", str(run))
    results = [
        json.loads((folder / "result.json").read_text()) for folder in (run, tmp_path / "whole")
    ]
    assert results[0]["test"] == results[1]["test"]
    assert results[0]["best_valid"] == results[1]["best_valid"]
