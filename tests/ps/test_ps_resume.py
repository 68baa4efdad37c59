"""Runs with servers that are resumed: damage is gone behind, and every sample still counts once."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ps_cluster import serving
from ranks import run_ranks
from small import small_config

from shoal.config import Resolved
from shoal.data.batch import Batch
from shoal.data.dataset import Dataset
from shoal.data.reader import Reader
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.runs.run import train_here
from shoal.runs.trained_run import Trained
from shoal.training.checkpoint.writing import Checkpoints, read, write
from shoal.training.cursor import Cursor
from shoal.training.run_folder import RunFolder
from shoal.training.trainer import Trainer


def train(folder: Path, resume: bool = False, **values: Any) -> dict[str, Any]:
    """A run of one worker and two servers."""
    with serving(2, folder=folder / "checkpoints") as running:
        values |= {"strategy__name": "ps", "strategy__ps__addresses": running.addresses}
        values |= {"train__batch_size": 256, "checkpoint__keep": 3, "run__output": str(folder)}
        config = small_config("BPR", **{"train__epochs": 3, **values})
        return train_here(Resolved(config, {}), resume)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    train(folder)
    return folder


@pytest.fixture()
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The warnings of the log."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr("shoal.runs.run.start_logging", lambda *_: None)  # it would take our place
    logging.getLogger("shoal").addHandler(handler)
    yield lines
    logging.getLogger("shoal").removeHandler(handler)


def flip(path: Path) -> None:
    """Change one byte of a server's rows."""
    file = sorted(path.glob("rows-*"))[-1]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def committed(folder: Path) -> list[Path]:
    return Checkpoints(folder / "checkpoints", World()).committed()


def test_damaged_rows_of_a_server(trained: Path, tmp_path: Path, said: list[str]) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    newest = committed(folder)[0]
    flip(newest)
    train(folder, resume=True)
    (line,) = said
    assert newest.name in line and "fails its checksum" in line and "trying the one before" in line
    assert (folder / "metrics.jsonl").read_text().count("\n") == 3
    for path, other in zip(committed(folder), committed(trained)):
        for file in path.glob("rows-*"):
            assert file.read_bytes() == (other / file.name).read_bytes()


def test_a_damaged_best_checkpoint_is_reported(
    trained: Path, tmp_path: Path, said: list[str]
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    newest, _, best = committed(folder)
    snapshot = read(newest)
    snapshot.state["best_step"] = int(best.name[5:])
    write(newest, snapshot)
    flip(best)
    used = Trained(folder)
    (line,) = said
    assert "the best checkpoint is lost" in line and "fails its checksum" in line
    assert f"that of step {used.state['step']} is used" in line
    train(folder, resume=True, train__epochs=4)
    assert "the best of the epochs to come is tested" in said[1] and len(said) == 2


# ---- another number of workers ------------------------------------------------------------------


class Stopped(Exception):
    """A run was ended in the middle of an epoch."""


def work(
    world: World, addresses: list[str], folder: str, mode: str, stop: int | None
) -> list[list[list[int]]]:
    """One worker: the (user, item) pairs of every step since it began or was resumed."""
    values: dict[str, Any] = {"strategy__name": "ps", "strategy__ps__mode": mode}
    values |= {"strategy__ps__addresses": addresses, "train__epochs": 1, "train__eval_every": 0}
    values |= {"train__batch_size": 50, "checkpoint__every_steps": 4}
    config = small_config("BPR", **values)
    parts = build(config, world)
    trainer = Trainer(
        *(parts.config, parts.strategy, parts.reader, parts.evaluator),
        *(RunFolder(folder), parts.fingerprint),
    )
    trainer.restore()
    found: list[list[list[int]]] = []
    train_parts = parts.strategy.step

    def counted(batches: Any, lr: float | None = None) -> Any:
        (batch,) = batches
        if trainer.cursor.step == stop:
            raise Stopped
        found.append(torch.stack([batch.ids["user_id"], batch.ids["item_id"]]).T.tolist())
        return train_parts(batches, lr)

    parts.strategy.step = counted  # type: ignore[method-assign]
    try:
        trainer.fit(0.0)
    except Stopped:
        trainer.checkpoints.wait()
        world.barrier()
    parts.strategy.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode, sizes", [("async", (3, 2, 1)), ("geo", (1, 2)), ("async", (1, 3))])
def test_every_sample_once_on_another_number_of_workers(
    tmp_path: Path, mode: str, sizes: tuple[int, ...]
) -> None:
    counts: Counter[tuple[int, int]] = Counter()
    done = 0
    for leg, size in enumerate(sizes):
        last = leg == len(sizes) - 1
        stop = None if last else done + 7  # three steps after a checkpoint, which are done again
        with serving(2, folder=tmp_path / "run" / "checkpoints") as running:
            given = (running.addresses, str(tmp_path / "run"), mode, stop)
            found = run_ranks(work, size, tmp_path / f"leg {leg}", *given)
        done += 4
        for steps in found:
            for pairs in steps if last else steps[:4]:
                counts.update(map(tuple, pairs))
    dataset = build(small_config("BPR"), World()).dataset
    assert isinstance(dataset, Dataset)
    expected = Counter(zip(dataset.user_ids("train").tolist(), dataset.item_ids("train").tolist()))
    assert counts == expected


def interactions(batch_size: int) -> Reader:
    return build(small_config("BPR", train__batch_size=batch_size), World()).reader


def windows(batch_size: int) -> Reader:
    return build(small_config("SASRec", train__batch_size=batch_size), World()).reader


@pytest.mark.parametrize("make", [interactions, windows])
def test_a_cursor_continues_with_steps_of_another_size(make: Callable[[int], Reader]) -> None:
    """Two steps of three workers, one of one, the rest with two: each sample once, in order."""
    counted: list[int] = []
    cursor = Cursor()
    for workers, steps in ((3, 2), (1, 1), (2, 10**6)):
        reader = make(7 * workers)
        reader.make = lambda samples, epoch: Batch(  # type: ignore[method-assign]
            len(samples), {}, dense={"number": torch.from_numpy(samples.astype(np.float64))}
        )
        ranks = [reader.batches(0, k, workers, *cursor.position(reader)) for k in range(workers)]
        for batches in islice(zip(*ranks), steps):
            counted += [int(n) for batch in batches for n in batch.dense["number"]]
            cursor.count_step(reader)
    assert cursor.samples is not None and cursor.samples >= reader.num_samples
    assert counted == [int(n) for b in reader.batches(0) for n in b.dense["number"]]


def test_an_order_that_depends_on_the_size_is_refused() -> None:
    config = small_config("SASRec", train__batch_size=14, train__bucket=True)
    reader = build(config, World()).reader
    Cursor(batch=3, samples=42).check(reader)
    with pytest.raises(ValueError, match="resume with as many workers as before"):
        Cursor(batch=3, samples=63).check(reader)
