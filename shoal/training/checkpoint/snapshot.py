"""Snapshot: everything that training changes, between a strategy and the files of a checkpoint.

Rows are keyed by id. They pass through in chunks: files of rows are read one at a time, and where
ranks hold a table together its rows reach the disk as they come, so that no process ever has the
whole of it. Where rows live with parameter servers, the servers write and read the files that hold
them, and a snapshot only names them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from shoal.distributed.world import PeerLost, World
from shoal.embedding.engines.row_files import RowFilesRead, chunks, take_over, warn_lost
from shoal.training.strategies.base import Strategy

CHUNK_BYTES = 1 << 26  # of rows in one file, about
RowFiles = list[tuple[str, dict[str, Any]]]  # folder -> file -> bytes and checksum; base first
Put = Callable[[str, dict[str, Tensor]], None]


class CheckpointError(ValueError):
    """A checkpoint is absent, damaged, or belongs to another model."""


class OverflowedCheckpointError(CheckpointError):
    """A checkpoint holds NaN or infinite numbers, as training leaves them that overflows."""


@dataclass
class Snapshot:
    """A checkpoint: file name -> its bytes, and the trainer's state (plain JSON values).

    Of files with rows that lie on rank 0's disk it has the path there; other ranks have None.
    `rows` names the files with rows that are not in `files`, those of a base before its deltas.
    """

    state: dict[str, Any]
    files: dict[str, bytes | Path | None] = field(default_factory=dict)
    rows: RowFiles = field(default_factory=list)


def take_snapshot(
    strategy: Strategy,
    state: dict[str, Any],
    put: Put | None = None,
    marks: dict[str, int] | None = None,
) -> Snapshot:
    """Copy everything that training changes. Only rank 0's snapshot is written.

    put: called with each file of rows as it comes; without it the snapshot keeps these files.
    marks: only rows that changed since, for tables that track changes (0: a table that does not).
    """
    snapshot = Snapshot({**state, "steps": strategy.rows.steps})
    if strategy.world.is_main:
        dense = {name: tensor.contiguous() for name, tensor in strategy.model.state_dict().items()}
        snapshot.files["dense.safetensors"] = format_tensors(dense)
        snapshot.files["optimizer.safetensors"] = format_tensors(strategy.dense_state())
    if strategy.saves_rows:
        return snapshot

    def keep(name: str, tensors: dict[str, Tensor]) -> None:
        snapshot.files[name] = format_tensors(tensors)

    kind = "" if marks is None else "delta"
    for name, store in strategy.rows.saved():  # all ranks: an export may need every one of them
        since = {"since": mark} if marks is not None and (mark := marks[name]) else {}
        rows = max(1, CHUNK_BYTES // (4 * store.table.dim * 3))  # with their state
        for number, tensors in enumerate(chunks(store, rows, **since)):
            (put or keep)(f"rows-{name}-{kind}{number:05d}.safetensors", tensors)
    return snapshot


def restore_into(strategy: Strategy, snapshot: Snapshot) -> None:
    """Restore a snapshot into a strategy whose model was set up."""
    model = strategy.model
    dense = parse_tensors(file_bytes(snapshot, "dense.safetensors", strategy.world))
    missing, unexpected = (
        model.state_dict().keys() - dense.keys(),
        dense.keys() - model.state_dict().keys(),
    )
    if missing or unexpected:
        raise CheckpointError(
            f"the checkpoint belongs to another model: it lacks {sorted(missing)} and has "
            f"{sorted(unexpected)} besides"
        )
    model.load_state_dict(dense)
    optimizer = file_bytes(snapshot, "optimizer.safetensors", strategy.world)
    strategy.restore_dense(parse_tensors(optimizer))
    steps = dict(snapshot.state["steps"])
    for number, (folder, files) in enumerate(snapshot.rows):
        strategy.load_rows(Path(folder), files, steps, fresh=number == 0)
    if not strategy.saves_rows:  # rows that came after the checkpoint must not stay
        for store in strategy.stores.values():
            if store.table.rows is None:
                store.forget()
    reads_by_table = {name: RowFilesRead() for name in strategy.stores}
    for file in snapshot.files:
        name = table_of(file)
        if name is None:
            continue
        if name not in strategy.stores:
            raise CheckpointError(
                f"the checkpoint has a table {name!r} that the model does not have"
            )
        tensors = parse_tensors(file_bytes(snapshot, file, strategy.world))
        take_over(strategy.stores[name], tensors, reads_by_table[name])
    for name, files_read in reads_by_table.items():
        if name in strategy.rows.counted and name in steps:
            # Servers of an async run counted the pushes of all workers, and ages go by that count.
            steps[name] = max(steps[name], files_read.last_step)
        if strategy.world.is_main:
            warn_lost(strategy.stores[name], files_read)
    strategy.rows.steps = steps


def file_bytes(snapshot: Snapshot, file: str, world: World) -> bytes:
    """The bytes of one file, on all ranks: rank 0 has it, and sends it."""
    data, failure = snapshot.files[file], None
    if isinstance(data, Path):
        try:
            data = data.read_bytes()
        except OSError as error:
            failure, data = error, b""
    data = world.broadcast_bytes(data)
    if failure is not None:
        raise CheckpointError(f"cannot read {file} of a checkpoint: {failure.strerror}")
    if not data:
        raise PeerLost("rank 0 could not read a checkpoint")
    return data


def table_of(file: str) -> str | None:
    """The table whose rows a file of a checkpoint holds; None where it holds something else.

    Rows of the checkpoint that a delta builds upon are named BASE/rows-TABLE-NUMBER.
    """
    name = file.rsplit("/", 1)[-1]
    return name[len("rows-") :].rsplit("-", 1)[0] if name.startswith("rows-") else None
