"""New items: an artifact with items behind those that it was trained with, by their vectors.

A new item has no row that learned, so each table reads W v of it, as it does for an item of the
data without a training interaction. What is ranked is made of that by the artifact's own graph.
Models that write codes: new_codes.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.data.loading.captions import ENDINGS
from shoal.data.loading.vector_files import VectorFile, read_vector_file
from shoal.data.loading.vectors import examine
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Init, Table
from shoal.files.durable import write_durably
from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import POPULARITY, Artifact
from shoal.serving.artifact.graph import ExportedGraph
from shoal.serving.artifact.new_codes import ENTRY as CODES_ENTRY
from shoal.serving.artifact.new_codes import (
    is_codes,
    new_ids,
    refuse_vectors_of_codes,
    write_codes_of,
)
from shoal.serving.artifact.onnx import FILE as ONNX
from shoal.serving.artifact.projection import ENTRY, FILE, GRAPH, TRAIN_ANEW
from shoal.serving.artifact.tables import CHUNK_ROWS, RowTable, write_table

RANKED = "item_vectors"  # the table of what is ranked
BLOCK = 1 << 14  # vectors that are projected at a time


@dataclass(frozen=True)
class AddedItems:
    """What `add_items` did: how many items are new, how many there are, vectors of zeros."""

    added: int
    items: int
    zeros: int


def add_items(
    artifact: str | Path,
    file: str | Path,
    to: str | Path,
    ids: str | None = None,
    column: str | None = None,
) -> AddedItems:
    """Write an artifact with the items of a file behind its own, to a new folder.

    file: of vectors, or, where the model knows items by their codes, of codes; ids, column: of
    vectors as in the config, `data.item_vectors`.
    """
    source = Artifact(artifact)
    if is_codes(file):
        return _add_coded(source, file, Path(to))
    refuse_vectors_of_codes(source)
    entry = _entry_of(source)
    vectors = read_vector_file(file, source.item_field, ids, column)
    with files.damaged(f"artifact {source.folder}: {ENTRY}"):
        width = int(entry["width"])
    _refuse_items(source, vectors, width)
    lengths = examine(vectors).lengths
    with files.new_folder(Path(to)) as hidden:
        _copy(source, hidden)
        tables = _extended_tables(source, hidden, entry, vectors, lengths)
        _write_words(source, hidden, vectors.ids)
        signature = {**source.signature, "tables": tables}
        items = _finish(source, hidden, Path(to), signature, len(vectors.ids), "vectors")
    return AddedItems(len(vectors.ids), items, int((lengths == 0).sum()))


def _add_coded(source: Artifact, file: str | Path, to: Path) -> AddedItems:
    """Write an artifact of a model that writes codes with the new items of a file of codes."""
    ids, item_codes = new_ids(source, file)
    with files.new_folder(to) as hidden:
        _copy(source, hidden)
        write_codes_of(source, hidden, ids, item_codes)
        _write_words(source, hidden, ids)
        entry = {**source.signature[CODES_ENTRY], "version": item_codes.version()}
        signature = {**source.signature, CODES_ENTRY: entry}
        items = _finish(source, hidden, to, signature, len(ids), "codes")
    return AddedItems(len(ids), items, 0)


def _finish(
    source: Artifact, hidden: Path, to: Path, signature: dict[str, Any], count: int, by: str
) -> int:
    """Write the signature, the card and the manifest, check all, commit; the number of items."""
    write_durably(hidden / files.SIGNATURE, json.dumps(signature, indent=1).encode())
    note = f"\n{count} items were added after training, by their {by}.\n"
    card = (source.folder / "README.md").read_text() if _has_card(source) else ""
    write_durably(hidden / "README.md", (card + note).encode())
    files.write_manifest(hidden)
    whole = Artifact(hidden)  # every check that a reader makes
    files.commit(hidden, to)
    return len(whole.items) - 1


def _has_card(source: Artifact) -> bool:
    return "README.md" in source.manifest["files"]


def _entry_of(source: Artifact) -> dict[str, Any]:
    """What the artifact says of its vectors; refuses one that cannot take items."""
    entry = source.signature.get(ENTRY)
    if not isinstance(entry, dict):
        raise ValueError(
            f"{source.folder}: {source.model} was trained without vectors of items, so nothing is "
            "known of a new one; train it with data.item_vectors"
        )
    if "refused" in entry:
        reason = str(entry["refused"])[:300]
        raise ValueError(
            f"{source.folder}: {source.model} takes no new items: {reason}; {TRAIN_ANEW}"
        )
    if source.signature["base"] is not None:
        raise ValueError(
            f"{source.folder} is a delta of {source.signature['base']['name']}; export it whole, "
            "and add items to that"
        )
    return entry


def _refuse_items(source: Artifact, vectors: VectorFile, width: int) -> None:
    """Refuse vectors of another width, and items that are there."""
    if vectors.width != width:
        raise ValueError(
            f"{vectors.path} has vectors of {vectors.width} numbers, and {source.model} was "
            f"trained with {width}"
        )
    numbers = source.items.find(vectors.ids)
    if numbers.any():
        examples = [vectors.ids[int(place)] for place in numbers.nonzero()[0][:3]]
        raise ValueError(
            f"{vectors.path}: {int((numbers > 0).sum())} of its items are in {source.folder} "
            f"already, such as {', '.join(repr(one[:40]) for one in examples)}; leave them out"
        )


def _copy(source: Artifact, hidden: Path) -> None:
    """All files that stay as they are; ONNX's has the old items, and stays behind."""
    for name in source.manifest["files"]:
        if name not in (files.SIGNATURE, "README.md", ONNX):
            shutil.copyfile(source.folder / name, hidden / name)


def _write_words(source: Artifact, hidden: Path, ids: list[str]) -> None:
    """Words, captions and popularity of items, with those of the new ones behind."""
    files.write_words(hidden, "items", [*map(str, source.items.words), *ids])
    for role in ENDINGS:
        if role in source.captions:
            files.write_words(hidden, role, [*source.captions[role].tolist(), *[""] * len(ids)])
    counts = torch.from_numpy(source.popularity.copy())
    new = torch.zeros(len(ids), dtype=counts.dtype)
    save_file({"counts": torch.cat([counts, new])}, hidden / POPULARITY)


# ---- rows ---------------------------------------------------------------------------------------


def _extended_tables(
    source: Artifact, hidden: Path, entry: Mapping[str, Any], vectors: VectorFile, lengths: Tensor
) -> dict[str, Any]:
    """Write the tables that have a row for each item; the entries of all tables."""
    kept = files.read_tensors(source.folder, FILE, source.manifest)
    with files.damaged(f"artifact {source.folder}: {FILE}"):
        numbers = _normalised(entry, kept, vectors, lengths)
        rows = {name: numbers @ kept[f"weight.{name}"].T for name in entry["tables"]}
        ranked = _ranked(source, kept, rows, len(numbers))
    entries = dict(source.signature["tables"])
    for name, new in {**rows, RANKED: ranked}.items():
        if name not in entries:
            continue
        other = entries[name].get("same_as")
        if other is not None and torch.equal(new, rows.get(other, torch.empty(0))):
            continue  # the file of the other table has it
        table = source.tables[name]
        written = write_table(
            hidden,
            Table(name, table.dim, table.size + len(new), Init("constant", 0.0)),
            _chunks(table, new),
            table.kind,
            table.seed,
        )
        entries[name] = {**written, "padding": table.table.padding}
    for name, facts in entries.items():
        if facts.get("same_as") in entries:
            shared = entries[facts["same_as"]]
            entries[name] = {**facts, "rows": shared["rows"], "size": shared["size"]}
    return entries


def _normalised(
    entry: Mapping[str, Any], kept: Mapping[str, Tensor], vectors: VectorFile, lengths: Tensor
) -> Tensor:
    """The file's vectors as the model reads them: [n, width]; those of zeros stay so."""
    numbers = vectors.values.float()
    if entry["normalise"] == "unit":
        numbers = numbers / lengths.clamp(min=1e-30).unsqueeze(1)
    if entry["normalise"] == "standard":
        numbers = (numbers - kept["mean"]) * kept["factor"]
    return numbers * (lengths > 0).unsqueeze(1)


def _ranked(
    source: Artifact, kept: Mapping[str, Tensor], rows: Mapping[str, Tensor], count: int
) -> Tensor:
    """What is ranked of the new items [n, dim], by the graph; rows: theirs, by table."""
    document = files.read_json(source.folder, GRAPH, source.manifest)
    tensors = {
        name.removeprefix("graph."): tensor
        for name, tensor in kept.items()
        if name.startswith("graph.")
    }
    dims = {name: one.shape[1] for name, one in rows.items()}
    graph = ExportedGraph(document, tensors, dims, f"{source.folder}/{GRAPH}")
    graph.check()

    def lookup(table: str, ids: Tensor | Jagged, how: str) -> Tensor:
        assert isinstance(ids, Tensor)
        return rows[table][ids]

    with torch.inference_mode():
        parts = [graph({"items": ids}, lookup) for ids in torch.arange(count).split(BLOCK)]
    ranked = torch.cat(parts)
    if ranked.shape != (count, source.tables[RANKED].dim) or not bool(ranked.isfinite().all()):
        raise ValueError("the graph of items gives no finite vectors")
    return ranked


def _chunks(table: RowTable, new: Tensor) -> Iterator[Rows]:
    """All rows of a table, and the new ones behind."""
    for ids in torch.arange(table.size).split(CHUNK_ROWS):
        yield Rows(ids, table.rows(ids))
    for places in torch.arange(len(new)).split(CHUNK_ROWS):
        yield Rows(places + table.size, new[places])
