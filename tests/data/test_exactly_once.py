"""Law 3 for readers: over an epoch with kills and changes of world size every sample counts once.

A run is a cursor (the next global batch) and a number of processes. Processes take their slices,
now and then the cursor is saved, and what was done after the last save is lost with a kill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from small import small_config

from shoal.clicks.layout import Layout
from shoal.clicks.log import ClickLog
from shoal.clicks.samples import InMemory
from shoal.clicks.stream import Stream, load
from shoal.data import random as random_room
from shoal.data.batch import Batch
from shoal.data.dataset import Dataset
from shoal.data.history import Histories
from shoal.data.loading.load import load_dataset
from shoal.data.masking import MaskedWindows, Masking
from shoal.data.prepared.folder import PrepareJob
from shoal.data.prepared.preparation import prepare
from shoal.data.reader import Interactions, Reader
from shoal.data.windows import Windows

BATCH = 23
# (processes, batches that are done, those of them that a save covers); then a kill
RUNS = [(2, 5, 4), (3, 2, 2), (1, 3, 0), (4, 7, 6), (2, 10**9, 10**9)]


def numbered(reader: Reader) -> Reader:
    """Every sample says which it is."""
    made = reader.make

    def make(samples: np.ndarray, epoch: int) -> Batch:
        batch = made(samples, epoch)
        return replace(batch, dense={"number": torch.from_numpy(samples.astype(np.float64))})

    reader.make = make  # type: ignore[method-assign]
    reader.chunk_samples = 120
    return reader


def by_interactions(dataset: Dataset) -> Reader:
    return numbered(Interactions(dataset, None, BATCH, 3))


def by_windows(dataset: Dataset) -> Reader:
    return numbered(Windows(dataset, Histories(dataset, ("train",), 5), None, BATCH, 3))


def by_masks(dataset: Dataset) -> Reader:
    histories = Histories(dataset, ("train",), 5)
    return numbered(MaskedWindows(dataset, histories, Masking(copies=2), None, BATCH, 3))


READERS: dict[str, Callable[[Dataset], Reader]] = {
    "interactions": by_interactions,
    "windows": by_windows,
    "masked windows": by_masks,
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    pytest.importorskip("polars")
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(4)
    lines = [f"{u},{i}" for u, i in zip(draw.integers(0, 80, 2500), draw.integers(0, 60, 2500))]
    (folder / "a.csv").write_text("\n".join(["user_id,item_id", *lines]))
    config = small_config("Pop", data__split__order="file").data
    prepare(PrepareJob([str(folder / "a.csv")], folder / "to", config))
    mapped = load_dataset(config.model_copy(update={"path": str(folder / "to")}), 1)
    return {"memory": load_dataset(small_config("Pop").data, 1), "mapped": mapped}


def count(reader: Reader, number_of: Callable[[Batch], list[int]]) -> Counter[int]:
    """How often each sample counts in the end."""
    counted: Counter[int] = Counter()
    cursor = 0
    for size, done, saved in RUNS:
        ranks = [reader.batches(2, rank, size, cursor) for rank in range(size)]
        steps = islice(zip(*ranks, strict=True), done)
        since: list[list[int]] = [[n for part in parts for n in number_of(part)] for parts in steps]
        for ended in ranks:
            ended.close()  # type: ignore[attr-defined]
        for numbers in since[:saved]:
            counted.update(numbers)
        cursor += min(saved, len(since))
    return counted


@pytest.mark.parametrize("kept", [True, False], ids=["order kept", "order computed"])
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("place", ["memory", "mapped"])
def test_interactions_and_windows(datasets, place, kind, kept, monkeypatch) -> None:
    if not kept:
        monkeypatch.setattr(random_room, "IN_MEMORY", 0)
    reader = READERS[kind](datasets[place])
    reader.prefetch = place == "mapped"
    found = count(reader, lambda batch: batch.dense["number"].int().tolist())
    assert reader.num_samples > 14 * BATCH
    assert found == Counter(range(reader.num_samples))


@pytest.mark.parametrize("kind", ["memory", "stream", "stream, uncounted"])
def test_clicks(tmp_path: Path, kind: str) -> None:
    layout, total = Layout(("1", "2"), ("d",), "click"), 800
    lines = [f"click:{n % 2} d:0.5 1:{n + 1} 2:7" for n in range(total)]
    for part in range(4):
        (tmp_path / f"{part}.txt").write_text("\n".join(lines[part::4]) + "\n")
    log = ClickLog(sorted(tmp_path.iterdir()), "slots", layout)
    if kind == "memory":
        reader: Reader = InMemory(load(log), layout, BATCH, 3, shuffle=True)
    else:
        counts = [log.count(file) or 0 for file in log.files] if kind == "stream" else None
        reader = Stream(log, BATCH, counts)
    found = count(reader, lambda batch: (batch.tensor("slots")[:, 0] - 1).tolist())
    assert found == Counter(range(total))
