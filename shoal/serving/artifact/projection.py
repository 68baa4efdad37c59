"""Projection: what an artifact keeps of vectors, so that items can be added to it (new_items.py).

    vectors.safetensors   W of each table [dim, width]; mean and factor of `standard`; the tensors
                          that the graph reads
    items.json            the graph that makes the vector that is ranked of an item's rows

A model that cannot take new items says why, in the signature.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from shoal.config.vectors_section import VectorsSection
from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Table
from shoal.embedding.vectors import ProjectedVectors
from shoal.files.durable import write_durably
from shoal.models.base import Model, Propagated, Retrieval
from shoal.serving.artifact.trace import Traced, trace

FILE, GRAPH, ENTRY = "vectors.safetensors", "items.json", "item_vectors"
TRAIN_ANEW = "train it anew with the new items"


@dataclass(frozen=True)
class ProjectedTable:
    """A table whose rows read vectors, and the module and field that read it."""

    module: Embeddings
    field: str
    table: Table
    vectors: ProjectedVectors

    def rows(self, ids: Tensor) -> Tensor:
        """What ids read as, rows and vectors together: [n, dim]."""
        return self.module.rows(self.field, ids)


def projected_tables(model: Model) -> dict[str, ProjectedTable]:
    """The tables of a model whose rows read vectors, by name."""
    return {
        table.name: ProjectedTable(module, field, table, vectors)
        for module in model.modules()
        if isinstance(module, Embeddings)
        for field, table in module.fields.items()
        if (vectors := module.vectors_of(table.name)) is not None
    }


def write_projection(
    folder: Path,
    model: Model,
    section: VectorsSection,
    traced: Traced | None,
    kind: str,
) -> dict[str, Any]:
    """Write what new items need; the entry of the signature, with why not where they cannot be.

    traced: the graph of the model's queries, if there is one; kind: of the artifact.
    """
    size = model.facts.num_items
    tables = {
        name: projected
        for name, projected in projected_tables(model).items()
        if projected.field != model.facts.user_field and len(projected.vectors.trained) == size
    }
    why = _refusal(model, tables, traced, kind)
    if why is not None:
        return {"refused": why}
    assert isinstance(model, Retrieval)
    try:
        with torch.inference_mode(False):
            ids = Batch(3, {"items": torch.ones(3, dtype=torch.int64)}).to(_device(tables))
            document, tensors = trace(
                model, ids, lambda batch: model.encode_item(batch.tensor("items"))
            )
    except ValueError as error:
        return {"refused": f"the vector of one item cannot be traced ({error})"}
    if others := sorted(set(document["tables"]) - tables.keys()):
        return {"refused": f"an item also has a row of the table {others[0]!r}"}
    if _has_rows_for_items(tensors.values(), size):
        return {"refused": "an item also has a number that training counted"}
    saved = {f"graph.{name}": tensor for name, tensor in tensors.items()}
    for name, projected in tables.items():
        saved[f"weight.{name}"] = projected.vectors.weight.detach()
    first = next(iter(tables.values())).vectors
    if first.shifted:
        saved |= {"mean": first.mean, "factor": first.factor}
    save_file({name: one.cpu().contiguous().clone() for name, one in saved.items()}, folder / FILE)
    write_durably(folder / GRAPH, json.dumps(document, indent=1).encode())
    width = first.weight.shape[1]
    return {"width": width, "normalise": section.normalise, "tables": sorted(tables)}


def _refusal(
    model: Model, tables: Mapping[str, ProjectedTable], traced: Traced | None, kind: str
) -> str | None:
    """Why items cannot be added; None: they can, as far as tables say."""
    size = model.facts.num_items
    if kind != "retrieval" or not isinstance(model, Retrieval):
        return "it scores pairs by a network, with what it knows of each item"
    if isinstance(model, Propagated):
        return "it makes items along its graph, in which new ones have no place"
    if any(one.table.rows != size for one in tables.values()):
        return "behind its last item stands the row of a mask"
    read: Collection[str] = () if traced is None else traced[0]["tables"]
    of_items = {
        table.name
        for module in model.modules()
        if isinstance(module, Embeddings)
        for table in module.tables.values()
        if table.rows == size
    }
    if others := sorted((set(read) & of_items) - tables.keys()):
        return f"its histories also read the table {others[0]!r}, which has no vectors"
    if traced is not None and _has_rows_for_items(traced[1].values(), size):
        return "its histories also read what training counted of each item"
    return None


def _has_rows_for_items(tensors: Collection[Tensor], size: int) -> bool:
    """Whether a graph reads a tensor with a place for each item."""
    return any(one.dim() > 0 and one.shape[0] == size for one in tensors)


def _device(tables: Mapping[str, ProjectedTable]) -> torch.device:
    return next(iter(tables.values())).vectors.weight.device
