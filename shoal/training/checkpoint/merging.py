"""Merged: the rows of a whole checkpoint, made from one before it and the deltas since.

It is made file by file in the background, from what is on disk: training does not wait for it, and
no more than about one file of rows is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from shoal.training.checkpoint.reading import read_manifest
from shoal.training.checkpoint.snapshot import CHUNK_BYTES, CheckpointError, rows_file, table_of
from shoal.training.checkpoint.tensor_files import write_tensors
from shoal.world.durable import count, is_plain_name

Tensors = dict[str, Tensor]


def merge(newest: Path, own: list[Path], folder: Path) -> dict[str, Any]:
    """Write the rows of a committed delta, changed by files of one more; file -> bytes, checksum.

    What was damaged since it was written is refused: nobody would notice it in what is made of it.
    """
    chain = _chain(newest)
    files: dict[str, tuple[list[Path], list[Path]]] = {}
    for path in [*(file for one in chain for file in _row_files(one)), *own]:
        table = table_of(path.name)
        assert table is not None
        below, above = files.setdefault(table, ([], []))
        (below if path.parent == chain[0] else above).append(path)
    written = {}
    for table, (below, above) in files.items():
        last = [path for path in own if table_of(path.name) == table]
        for number, tensors in enumerate(_merged(below, above, last)):
            name = rows_file(table, number)
            written[name] = write_tensors(folder / name, tensors)
    return written


def _chain(path: Path) -> list[Path]:
    """A checkpoint and those that it builds upon, the whole one first."""
    found = [path]
    while (base := read_manifest(found[0]).get("base")) is not None:
        if not is_plain_name(base) or not base.startswith("step-") or base >= found[0].name:
            raise CheckpointError(f"checkpoint {found[0]} is damaged: its base {base!r} cannot be")
        found.insert(0, path.parent / base)
    return found


def _row_files(checkpoint: Path) -> Iterator[Path]:
    for name, facts in read_manifest(checkpoint)["files"].items():
        if table_of(name) is not None:
            if not is_plain_name(name) or count(checkpoint / name, facts["bytes"]) != facts:
                raise CheckpointError(f"checkpoint {checkpoint} is damaged: {name} was changed")
            yield checkpoint / name


def _merged(below: list[Path], above: list[Path], last: list[Path]) -> Iterator[Tensors]:
    """The rows of one table, by ascending id; then its counters of ids without a row, if any."""
    parts = [part for part in map(Part, below) if len(part.ids)]
    changes = [part for part in map(Part, above) if len(part.ids)]
    if not parts:
        parts, changes = changes[:1], changes[1:]
    ends = [int(part.ids[0]) for part in parts[1:]]
    for part, end in zip(parts, [*ends, None]):
        rows = {name: tensor.clone() for name, tensor in part.take(None).items()}
        for change in changes:
            rows = _overlaid(rows, change.take(end))
        most = max(1, CHUNK_BYTES * len(rows["ids"]) // sum(t.nbytes for t in rows.values()))
        for start in range(0, len(rows["ids"]), most):
            yield {name: t[start : start + most].contiguous() for name, t in rows.items()}
    for path in last:
        if not len(Part(path).ids):
            with safe_open(path, "pt") as file:
                yield {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


class Part:
    """A file with rows, read from its beginning on."""

    def __init__(self, path: Path):
        self._file = safe_open(path, "pt")
        self._names = list(self._file.keys())
        self.ids = self._file.get_tensor("ids")
        self._start = 0

    def take(self, end: int | None) -> Tensors:
        """The next rows, up to those of an id (None: all); {} where there are none."""
        start, stop = self._start, len(self.ids)
        if end is not None:
            stop = int(torch.searchsorted(self.ids, end))
        self._start = stop
        if start == stop:
            return {}
        return {name: self._file.get_slice(name)[start:stop] for name in self._names}


def _overlaid(rows: Tensors, change: Tensors) -> Tensors:
    """Rows, some of which others replace and others are added to; ids ascend in all of them."""
    if not change:
        return rows
    ids, new = rows["ids"], change["ids"]
    place = torch.searchsorted(ids, new)
    known = ids[place.clamp(max=len(ids) - 1)] == new
    for name, tensor in rows.items():
        tensor[place[known]] = change[name][known]
    if known.all():
        return rows
    joined = {name: torch.cat([t, change[name][~known]]) for name, t in rows.items()}
    order = joined["ids"].argsort()
    return {name: tensor[order] for name, tensor in joined.items()}
