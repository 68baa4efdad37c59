"""The rows of an artifact: how they are written, chunk by chunk, and how they are read.

    float32   as they were trained
    float16   rounded to the nearest
    int8      round(value / scale) with a scale for each row, its largest value / 127

A table of which every row is there is read by number; one that lists its ids (growing tables) is
searched, and an id that it does not list reads as the value that it would begin to learn from.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.embedding.engines.init import initial_rows
from shoal.embedding.rows.bags import pool_rows
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Init, Table
from shoal.recommender.recommender import Append
from shoal.serving.artifact.files import ArtifactError, TensorFile, damaged, read_tensors

Kind = Literal["float32", "float16", "int8"]
TYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}
CHUNK_ROWS = 1 << 16


def write_table(
    folder: Path,
    table: Table,
    chunks: Iterator[Rows],
    kind: Kind,
    seed: int = 0,
    base: RowTable | None = None,
) -> dict[str, Any]:
    """Write rows as they come, with a base only those that differ; their entry in the signature."""
    name = table.name
    values = TensorFile(folder / f"rows-{name}.safetensors", "values", TYPES[kind], (table.dim,))
    listed = TensorFile(folder / f"ids-{name}.safetensors", "ids", torch.int64)
    scales = TensorFile(folder / f"scale-{name}.safetensors", "scale", torch.float32)
    whole, worst = base is None, 0.0
    try:
        for rows in chunks:
            stored, scale = _pack(rows.values.float(), kind)
            ids = rows.ids
            worst = max(worst, _error(rows.values, stored, scale))
            if base is not None:
                changed = base.differs(ids, stored, scale)
                ids, stored, scale = ids[changed], stored[changed], scale[changed]
            elif not torch.equal(ids, torch.arange(values.rows, values.rows + len(ids))):
                whole = False
            values.add(stored)
            listed.add(ids)
            scales.add(scale)
    finally:
        for file in (values, listed, scales):
            file.close()
    if whole and table.rows is not None:
        listed.path.unlink()
    if kind != "int8":
        scales.path.unlink()
    init = table.init
    return {
        "dim": table.dim,
        "rows": values.rows,
        "size": table.rows,
        "kind": kind,
        "listed": not (whole and table.rows is not None),
        "init": [init.kind, init.scale],
        "padding": table.padding,
        "seed": seed,
        "largest_error": worst,
    }


def _pack(values: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Rows as they are stored, and the scale of each [n] (1 where there is none)."""
    if kind != "int8":
        return values.to(TYPES[kind]).contiguous(), torch.ones(len(values))
    largest = values.abs().amax(1) if values.numel() else torch.zeros(len(values))
    scale = torch.where(largest > 0, largest / 127, 1.0)
    return (values / scale[:, None]).round().to(torch.int8), scale


def _error(values: Tensor, stored: Tensor, scale: Tensor) -> float:
    if stored.dtype == torch.float32 or not len(values):
        return 0.0
    return float((stored.float() * scale[:, None] - values).abs().max())


class RowTable:
    """One table of an artifact."""

    def __init__(self, folder: Path, manifest: dict[str, Any], name: str, facts: dict[str, Any]):
        self.folder = folder
        self.name = name
        self.facts = facts
        with damaged(f"artifact {folder}: table {name!r}"):
            self.dim = int(facts["dim"])
            self.kind = facts["kind"]
            count, size = int(facts["rows"]), facts["size"]
            kind, scale = facts["init"]
            dtype = TYPES[self.kind]
            self.table = Table(name, self.dim, size, Init(kind, scale), facts["padding"])
            self.seed = int(facts["seed"])
            self.size = count if size is None else int(size)
        self.values = read_tensors(folder, f"rows-{name}.safetensors", manifest, ["values"])[
            "values"
        ]
        self.ids: Tensor | None = None
        self.scale: Tensor | None = None
        if facts["listed"]:
            self.ids = read_tensors(folder, f"ids-{name}.safetensors", manifest, ["ids"])["ids"]
        if self.kind == "int8":
            tensors = read_tensors(folder, f"scale-{name}.safetensors", manifest, ["scale"])
            self.scale = tensors["scale"]
        wrong = self.values.shape != (count, self.dim) or self.values.dtype != dtype
        wrong |= self.ids is None and size != count
        if self.ids is not None:
            wrong |= self.ids.shape != (count,) or self.ids.dtype != torch.int64
        if self.scale is not None:
            wrong |= self.scale.shape != (count,) or self.scale.dtype != torch.float32
        if wrong or not (0 < self.dim <= 1 << 20 and 0 <= self.size <= 1 << 40):
            raise ArtifactError(f"artifact {folder} is damaged: table {name!r} is not of its shape")
        if self.ids is not None and bool((self.ids.diff() <= 0).any()):
            raise ArtifactError(f"artifact {folder} is damaged: ids of {name!r} do not ascend")
        self.below: RowTable | None = None  # of a delta: what it builds upon

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of ids of any shape: that shape + [dim], float32."""
        flat = ids.reshape(-1)
        return self._flat(flat).view(*ids.shape, self.dim)

    def pooled(self, ids: Tensor | Jagged, pooling: Any = "sum") -> Tensor:
        """Rows of ids, or of lists of ids, pooled by list: [lists, dim]."""
        if isinstance(ids, Tensor):
            return self.rows(ids)
        rows = self._flat(ids.values)
        return pool_rows(rows, ids.values, ids.offsets, pooling, ids.weights, self.table.padding)

    def needs_every_row(self) -> None:
        """Refuse a table that is read whole and holds only a part of its rows: the memory that it
        would take is not bounded by the size of its files.
        """
        count, below = len(self.values), self.below
        while below is not None:
            count, below = count + len(below.values), below.below
        if count < self.size:
            raise ArtifactError(
                f"artifact {self.folder} is damaged: rows-{self.name}.safetensors holds {count} of "
                f"{self.size} rows"
            )

    def whole(self) -> Tensor:
        """Every row of a table without a list of ids [size, dim], float32: no copy where it can."""
        if self.ids is None and self.kind == "float32":
            return self.values
        return self._flat(torch.arange(self.size))

    def _flat(self, ids: Tensor) -> Tensor:
        if ids.dtype not in (torch.int64, torch.int32):
            raise ArtifactError(f"ids of table {self.name!r} are {ids.dtype}, not whole numbers")
        if self.table.rows is not None and len(ids):
            low, high = (int(bound) for bound in ids.aminmax())
            if low < 0 or high >= self.table.rows:
                raise self.table.outside(low if low < 0 else high)
        if self.ids is None:
            return self._read(ids)
        place = torch.searchsorted(self.ids, ids)
        listed = place < len(self.ids)
        listed &= (
            self.ids[place.clamp(max=max(0, len(self.ids) - 1))] == ids if len(self.ids) else False
        )
        if bool(listed.all()):
            return self._read(place)
        other = ids[~listed]  # rows that are new since `below` was made are all found
        out = torch.empty(len(ids), self.dim)
        out[~listed] = (
            self.below._flat(other) if self.below else initial_rows(self.table, self.seed, other)
        )
        out[listed] = self._read(place[listed])
        return out

    def _read(self, places: Tensor) -> Tensor:
        rows = self.values.index_select(0, places)
        if self.kind == "float32":
            return rows
        rows = rows.float()
        return rows if self.scale is None else rows * self.scale[places][:, None]

    def followed_by(self, new: Tensor, name: str, append: Append) -> RowTable:
        """This table, which holds every row, and new rows [n, dim] behind, stored as its own are.

        append: as `SpareRows.append`, by this name.
        """
        if self.ids is not None or self.below is not None:
            raise ArtifactError(
                f"artifact {self.folder}: table {self.name!r} does not hold all rows"
            )
        stored, scale = _pack(new, self.kind)
        longer = copy.copy(self)
        longer.values = append(f"rows-{name}", self.values, stored)
        if self.scale is not None:
            longer.scale = append(f"scale-{name}", self.scale, scale)
        longer.size = len(longer.values)
        longer.table = replace(self.table, rows=longer.size)
        return longer

    def differs(self, ids: Tensor, stored: Tensor, scale: Tensor) -> Tensor:
        """Which of these rows, as they would be stored, differ from this table's: bool [n]."""
        new = stored.float() * scale[:, None] if stored.dtype == torch.int8 else stored.float()
        in_range = torch.ones(len(ids), dtype=torch.bool)
        if self.table.rows is not None:
            in_range = (ids >= 0) & (ids < self.table.rows)
        old = torch.full_like(new, torch.nan)
        old[in_range] = self._flat(ids[in_range])
        return (old != new).any(1)
