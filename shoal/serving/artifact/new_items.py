"""New items: an artifact with items behind those that it was trained with, by their vectors.

`rows_of` checks them, and makes their rows (projector.py). `with_items` is the artifact in memory,
as `POST /items` of a service has it; write_new_items.py makes a folder, as `shoal artifact
add-items` does.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.data.loading.vector_files import VectorFile
from shoal.data.loading.vectors import examine
from shoal.data.vocabulary import PAD, Words
from shoal.serving.artifact.artifact import GRAPHS, Artifact
from shoal.serving.artifact.graph import Running
from shoal.serving.artifact.projector import RANKED


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
