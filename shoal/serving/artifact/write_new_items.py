"""New items in a new folder: an artifact with items behind its own, written and checked.

add_items          of a file of vectors, or of codes: `shoal artifact add-items`
write_with_items   of vectors in memory
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

from shoal.data.loading.captions import ENDINGS
from shoal.data.loading.vector_files import read_vector_file
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Init, Table
from shoal.files.durable import write_durably
from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import POPULARITY, Artifact
from shoal.serving.artifact.new_codes import is_codes, new_ids, write_codes_of
from shoal.serving.artifact.new_items import NewItems, needs_vectors, rows_of
from shoal.serving.artifact.onnx import FILE as ONNX
from shoal.serving.artifact.projector import CODES_ENTRY
from shoal.serving.artifact.tables import CHUNK_ROWS, RowTable, write_table


@dataclass(frozen=True)
class AddedItems:
    """What `add_items` did: how many items are new, how many there are, vectors of zeros.

    already, left_out: of a folder of a service, those that the artifact had already, and those that
    it cannot read.
    """

    added: int
    items: int
    zeros: int
    already: int = 0
    left_out: int = 0


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
        return _write_with_codes(source, file, Path(to))
    needs_vectors(source)
    vectors = read_vector_file(file, source.item_field, ids, column)
    return write_with_items(source, NewItems(str(vectors.path), vectors.ids, vectors.values), to)


def write_with_items(source: Artifact, new: NewItems, to: str | Path) -> AddedItems:
    """Write an artifact with new items behind its own, to a new folder."""
    rows, lengths = rows_of(source, new)
    with files.new_folder(Path(to)) as hidden:
        _copy(source, hidden)
        tables = _extended_tables(source, hidden, rows)
        _write_words(source, hidden, new)
        signature = {**source.signature, "tables": tables}
        count = _finish(source, hidden, Path(to), signature, len(new.ids), "vectors")
    return AddedItems(len(new.ids), count, int((lengths == 0).sum()))


def _write_with_codes(source: Artifact, file: str | Path, to: Path) -> AddedItems:
    """Write an artifact of a model that writes codes with the new items of a file of codes."""
    ids, item_codes = new_ids(source, file)
    new = NewItems(str(file), ids, torch.zeros(len(ids), 0))
    with files.new_folder(to) as hidden:
        _copy(source, hidden)
        write_codes_of(source, hidden, ids, item_codes)
        _write_words(source, hidden, new)
        entry = {**source.signature[CODES_ENTRY], "version": item_codes.version()}
        signature = {**source.signature, CODES_ENTRY: entry}
        count = _finish(source, hidden, to, signature, len(ids), "codes")
    return AddedItems(len(ids), count, 0)


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


def _copy(source: Artifact, hidden: Path) -> None:
    """All files that stay as they are; ONNX's has the old items, and stays behind."""
    for name in source.manifest["files"]:
        if name not in (files.SIGNATURE, "README.md", ONNX):
            shutil.copyfile(source.folder / name, hidden / name)


def _write_words(source: Artifact, hidden: Path, new: NewItems) -> None:
    """Words, captions and popularity of items, with those of the new ones behind."""
    files.write_words(hidden, "items", [*map(str, source.items.words), *new.ids])
    for role in ENDINGS:
        if role in source.captions:
            texts = new.captions.get(role, [""] * len(new.ids))
            files.write_words(hidden, role, [*source.captions[role].tolist(), *texts])
    counts = torch.from_numpy(source.popularity.copy())
    zeros = torch.zeros(len(new.ids), dtype=counts.dtype)
    save_file({"counts": torch.cat([counts, zeros])}, hidden / POPULARITY)


def _extended_tables(source: Artifact, hidden: Path, rows: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write the tables that have a row for each item; the entries of all tables."""
    entries = dict(source.signature["tables"])
    for name, new in rows.items():
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


def _chunks(table: RowTable, new: Tensor) -> Iterator[Rows]:
    """All rows of a table, and the new ones behind."""
    for ids in torch.arange(table.size).split(CHUNK_ROWS):
        yield Rows(ids, table.rows(ids))
    for places in torch.arange(len(new)).split(CHUNK_ROWS):
        yield Rows(places + table.size, new[places])
