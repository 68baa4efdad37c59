"""New items: an artifact with items behind those that it was trained with, by their vectors.

    add_items     a new artifact in a new folder, `shoal artifact add-items`
    with_items    the artifact in memory, `POST /items` of a service

Both take what `rows_of` makes of the vectors (projector.py).
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from shoal.data.loading.captions import ENDINGS
from shoal.data.loading.vector_files import VectorFile, read_vector_file
from shoal.data.loading.vectors import examine
from shoal.data.vocabulary import PAD, Words
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Init, Table
from shoal.files.durable import write_durably
from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import GRAPHS, POPULARITY, Artifact
from shoal.serving.artifact.graph import Running
from shoal.serving.artifact.onnx import FILE as ONNX
from shoal.serving.artifact.projector import RANKED
from shoal.serving.artifact.tables import CHUNK_ROWS, RowTable, write_table


class KnownItems(ValueError):
    """Items were to be added that are there."""


@dataclass(frozen=True, eq=False)
class NewItems:
    """Items by their vectors.

    source    what messages call them, such as their file
    vectors   [n, width], as they are stored
    captions  title, picture -> a text for each item, empty where it has none
    """

    source: str
    ids: Sequence[str]
    vectors: Tensor
    captions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def chosen(self, keep: np.ndarray) -> NewItems:
        """The items at these places [m]."""
        return NewItems(
            self.source,
            [self.ids[place] for place in keep.tolist()],
            self.vectors[torch.from_numpy(keep)],
            {role: [texts[k] for k in keep.tolist()] for role, texts in self.captions.items()},
        )


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
    """Write an artifact with the items of a file of vectors behind its own, to a new folder.

    ids, column: as in the config, `data.item_vectors`.
    """
    source = Artifact(artifact)
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
        write_durably(hidden / files.SIGNATURE, json.dumps(signature, indent=1).encode())
        note = f"\n{len(new.ids)} items were added after training, by their vectors.\n"
        card = (source.folder / "README.md").read_text() if _has_card(source) else ""
        write_durably(hidden / "README.md", (card + note).encode())
        files.write_manifest(hidden)
        whole = Artifact(hidden)  # every check that a reader makes
        files.commit(hidden, Path(to))
    return AddedItems(len(new.ids), len(whole.items) - 1, int((lengths == 0).sum()))


def with_items(source: Artifact, new: NewItems) -> Artifact:
    """The artifact with new items behind its own, in memory; `source` stays as it is.

    What was computed of the other items is not computed again, nor copied but for the first time.
    """
    return _longer(source, new, rows_of(source, new)[0])


def with_room(source: Artifact) -> Artifact:
    """The artifact with its rows of items where there is room behind them.

    They are copied, so that the first new item is no slower than others.
    """
    if source.kind in GRAPHS or source.projector.refusal is not None:
        return source
    nothing = NewItems("no items", [], torch.zeros(0, source.projector.width))
    dims = {name: table.dim for name, table in source.tables.items()}
    names = [name for name in (*source.projector.table_names, RANKED) if name in dims]
    return _longer(source, nothing, {name: torch.zeros(0, dims[name]) for name in names})


def _longer(source: Artifact, new: NewItems, rows: Mapping[str, Tensor]) -> Artifact:
    """The artifact with new items and their rows, by table, behind its own."""
    count, append = len(source.items), source.spare.append
    longer = copy.copy(source)
    longer.items = source.items.followed_by(new.ids)
    longer.num_added = source.num_added + len(new.ids)
    longer.tables = tables = dict(source.tables)
    other = source.signature["tables"][RANKED].get("same_as")
    is_shared = other in rows and torch.equal(rows[RANKED], rows[other])
    if source.num_added:  # rows that came before may have differed
        is_shared = is_shared and tables[RANKED] is tables[other]
    for name, new_rows in rows.items():
        if name in tables and not (name == RANKED and is_shared):
            tables[name] = tables[name].followed_by(new_rows, name, append)
    if is_shared:
        tables[RANKED] = tables[other]  # in memory once
    ranked_table = tables[RANKED]
    if ranked_table.kind == "float32":
        longer.item_vectors = ranked_table.values
    else:
        new_vectors = ranked_table.rows(torch.arange(count, count + len(new.ids)))
        longer.item_vectors = append(RANKED, source.item_vectors, new_vectors)
    longer.popularity = np.append(source.popularity, np.zeros(len(new.ids), np.int64))
    longer.captions = {
        role: _followed(texts, new.captions.get(role, [""] * len(new.ids)))
        for role, texts in source.captions.items()
    }
    if longer.graph is not None:
        longer.running = Running(longer.graph, tables)
    if source.extending is not None:
        longer.extending = Running(source.extending.graph, tables)
    if longer.kept_histories is not None:  # what it keeps holds for the old items and the new
        longer.kept_histories.extend = longer.extended
    longer.recommender = source.recommender.of_longer(longer, append)
    return longer


def _followed(texts: Any, new: Sequence[str]) -> Any:
    assert isinstance(texts, Words)
    return texts.followed_by(new)


# ---- what can be added --------------------------------------------------------------------------


def needs_vectors(source: Artifact) -> None:
    """Refuse an artifact that takes no new items."""
    source.needs_catalogue()
    if source.projector.refusal is not None:
        raise ValueError(source.projector.refusal)


def rows_of(source: Artifact, new: NewItems) -> tuple[dict[str, Tensor], Tensor]:
    """Table -> rows of new items [n, dim], and the lengths of their vectors [n]; refuses what
    cannot be added.
    """
    needs_vectors(source)
    width = source.projector.width
    if new.vectors.shape[1] != width:
        raise ValueError(
            f"{new.source} has vectors of {new.vectors.shape[1]} numbers, and {source.model} was "
            f"trained with {width}"
        )
    _refuse_ids(source, new)
    lengths = examine(VectorFile(Path(new.source), list(new.ids), new.vectors)).lengths
    rows = source.projector.rows(new.vectors, lengths)
    for table in rows.values():
        finite = table.isfinite().all(1)
        if not bool(finite.all()):
            odd = new.ids[int(finite.int().argmin())][:80]
            raise ValueError(
                f"{new.source}: the vector of {odd!r} has numbers that are too large for "
                f"{source.model}; scale it as those that it was trained with"
            )
    return rows, lengths


def _refuse_ids(source: Artifact, new: NewItems) -> None:
    """Refuse ids that are there, and those that are none of the artifact's type."""
    numbers = source.items.find(new.ids)
    if numbers.any():
        examples = [new.ids[int(place)] for place in numbers.nonzero()[0][:3]]
        raise KnownItems(
            f"{new.source}: {int((numbers > 0).sum())} of its items are in {source.folder} "
            f"already, such as {', '.join(repr(one[:40]) for one in examples)}; leave them out"
        )
    longer: dict[str, str] = {}
    for word in new.ids:
        if word == PAD:
            raise ValueError(f"{new.source}: the id {PAD!r} stands for padding; rename it")
        plain = word.removesuffix(".0")  # 7 and 7.0 are one item
        if plain in longer:
            raise ValueError(
                f"{new.source}: the ids {longer[plain][:40]!r} and {word[:40]!r} are one item; "
                "leave one of them"
            )
        longer[plain] = word
    try:
        for word in new.ids:
            source.items.kind(word)
    except ValueError:
        kind = source.items.kind.__name__
        raise ValueError(
            f"{new.source}: the id {word[:80]!r} is no {kind}, as those of {source.folder} are"
        ) from None


# ---- a new folder -------------------------------------------------------------------------------


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
