"""Snapshot: everything that training changes, between a strategy and the files of a checkpoint.

Rows are keyed by id. Where rows live with parameter servers, the servers write and read the files
that hold them, and a snapshot only names them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors

from shoal.embedding.row_files import chunks, forget, take_over
from shoal.strategy.base import Strategy

RowFiles = list[tuple[str, dict[str, Any]]]  # folder -> file -> bytes and checksum; base first


class CheckpointError(ValueError):
    """A checkpoint is absent, damaged, or belongs to another model."""


@dataclass
class Snapshot:
    """A checkpoint in memory: file name -> bytes, and the trainer's state (plain JSON values).

    `rows` names the files with rows that are not in `files`, those of a base before its deltas.
    """

    state: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    rows: RowFiles = field(default_factory=list)


def take(strategy: Strategy, state: dict[str, Any]) -> Snapshot:
    """Copy everything that training changes. Only rank 0's snapshot is written."""
    snapshot = Snapshot({**state, "steps": {name: s.step for name, s in strategy.stores.items()}})
    if strategy.world.is_main:
        dense = {name: tensor.contiguous() for name, tensor in strategy.model.state_dict().items()}
        snapshot.files["dense.safetensors"] = format_tensors(dense)
        snapshot.files["optimizer.safetensors"] = format_tensors(strategy.dense_state())
    if strategy.saves_rows:
        return snapshot
    for name, store in strategy.owned_rows():  # all ranks: an export may need every one of them
        for number, tensors in enumerate(chunks(store)):
            snapshot.files[f"rows-{name}-{number:05d}.safetensors"] = format_tensors(tensors)
    return snapshot


def give(strategy: Strategy, snapshot: Snapshot) -> None:
    """Put a snapshot back into a model that was set up."""
    model = strategy.model
    dense = parse_tensors(snapshot.files["dense.safetensors"])
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
    strategy.restore_dense(parse_tensors(snapshot.files["optimizer.safetensors"]))
    steps = dict(snapshot.state["steps"])
    for number, (folder, files) in enumerate(snapshot.rows):
        strategy.load_rows(Path(folder), files, steps, fresh=number == 0)
    if not strategy.saves_rows:  # rows that came after the checkpoint must not stay
        for store in strategy.stores.values():
            leaf = getattr(store, "leaf", store)
            if store.table.rows is None and leaf is not None:
                forget(leaf)
    for file, data in snapshot.files.items():
        name = table_of(file)
        if name is None:
            continue
        if name not in strategy.stores:
            raise CheckpointError(f"the checkpoint has a table {name!r} that the model has not")
        last = take_over(strategy.stores[name], parse_tensors(data))
        if name in strategy.counted:
            # Servers of an async run counted the pushes of all workers, and ages go by that count.
            steps[name] = max(steps[name], last)
    for name, step in steps.items():
        strategy.stores[name].step = step


def table_of(file: str) -> str | None:
    """The table whose rows a file of a checkpoint holds; None where it holds something else.

    Rows of the checkpoint that a delta builds upon are named BASE/rows-TABLE-NUMBER.
    """
    name = file.rsplit("/", 1)[-1]
    return name[len("rows-") :].rsplit("-", 1)[0] if name.startswith("rows-") else None


def pack(snapshot: Snapshot | None) -> bytes:
    """A snapshot as bytes, for other ranks."""
    if snapshot is None:
        return b""
    sizes = {name: len(data) for name, data in snapshot.files.items()}
    head = {"state": snapshot.state, "sizes": sizes, "rows": snapshot.rows}
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *snapshot.files.values()])


def unpack(data: bytes) -> Snapshot | None:
    """The opposite of `pack`."""
    if not data:
        return None
    position = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:position])
    snapshot = Snapshot(head["state"], rows=[(folder, files) for folder, files in head["rows"]])
    for name, size in head["sizes"].items():
        snapshot.files[name] = data[position : position + size]
        position += size
    return snapshot
