"""Checkpoints of tables that ranks hold together: rows pass through rank 0 file by file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from services import Alone, pull
from small import small_config

from shoal.distributed.world import World
from shoal.embedding.rows.placement import Placement, Sharding
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Table
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.runs.build import build
from shoal.training.checkpoint import snapshot, writing
from shoal.training.checkpoint.writing import CheckpointError, Checkpoints, restore_into

GROWN = 53


def on_ranks(world: World, folder: str) -> dict[str, Any]:
    snapshot.CHUNK_BYTES, writing.Files.held_bytes = 2_000, 5_000
    # Everything on the wire and on disk, by the file: how much of it there was at a time.
    sent: list[int] = []
    broadcast = world.broadcast_bytes

    def watched(data: bytes | None) -> bytes:
        data = broadcast(data)
        sent.append(len(data))
        return data

    world.broadcast_bytes = watched  # type: ignore[method-assign]
    config = small_config("BPR", strategy__name="sharded", strategy__replicate_below=0)
    first, second = build(config, world), build(config, world)
    for batch in first.reader.batches(0, world.rank, world.size):
        first.strategy.train_step(batch)
    checkpoints = Checkpoints(Path(folder), world)
    checkpoints.save(first.strategy, {"step": 1})
    checkpoints.wait()
    world.barrier()
    del sent[:]
    restore_into(second.strategy, checkpoints.load_step(1))
    same = [
        torch.equal(*(pull(parts.strategy.rows, name, ids) for parts in (first, second)))
        for name, store in first.strategy.stores.items()
        for ids in [torch.arange(1, store.table.rows)]
    ]
    return {
        "same": same,
        "sent": sent,
        "grown": grown(world),
        "failure": failing(world, first.strategy, folder),
    }


def grown(world: World) -> list[list[int]]:
    """Ids of the chunks of a table that grows, at rank 0."""
    sharding = Sharding(Table("g", 2, None), Placement("row", "hash"), world.size)
    store = Alone(sharding, world, RowOptimizer("sgd"), seed=1)
    ids = torch.arange(GROWN) * 7 - 100
    store.restore(Rows(ids, torch.stack([ids, ids + 1], 1).float(), {}))
    chunks = list(store.export(chunk_rows=10))
    assert all(torch.equal(chunk.values[:, 0], chunk.ids.float()) for chunk in chunks)
    return [chunk.ids.tolist() for chunk in chunks]


def failing(world: World, strategy: Any, folder: str) -> str:
    """A disk that is full at the third file: rank 0 says so, and nobody waits for ever."""
    written = []

    def write(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return {"bytes": 0, "sha256": ""}

    honest, writing.write_tensors = writing.write_tensors, write
    checkpoints = Checkpoints(Path(folder), world)
    checkpoints.save(strategy, {"step": 2})
    writing.write_tensors = honest
    try:
        checkpoints.wait()
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spread")


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    return run_ranks(on_ranks, 2, folder, str(folder / "checkpoints"))


def test_rows_are_restored_to_their_ranks(found: list[dict[str, Any]]) -> None:
    assert [one["same"] for one in found] == [[True, True], [True, True]]


def test_files_travel_one_at_a_time(found: list[dict[str, Any]], folder: Path) -> None:
    files = sorted((folder / "checkpoints" / "step-000000001").glob("rows-*"))
    sizes = [file.stat().st_size for file in files]
    assert len(sizes) > 10 and max(sizes) < 5_000 < sum(sizes)
    for one in found:
        head, _, _, *rows = one["sent"]  # the state, then each file: of the dense part two
        assert sorted(rows) == sorted(sizes) and head < 10_000


def test_a_growing_table_comes_in_chunks(found: list[dict[str, Any]]) -> None:
    chunks, others = (one["grown"] for one in found)
    assert others == []
    assert len(chunks) > 5 and all(len(chunk) <= 10 for chunk in chunks)
    assert [id for chunk in chunks for id in chunk] == [7 * k - 100 for k in range(GROWN)]


def test_a_full_disk_is_an_error_and_leaves_nothing(
    found: list[dict[str, Any]], folder: Path
) -> None:
    assert "No space left on device" in found[0]["failure"] and found[1]["failure"] == ""
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000000001"]
