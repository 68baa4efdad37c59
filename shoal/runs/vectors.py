"""Vectors of a run: read for its items and users, and put under the tables of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.config.schema import DataSection
from shoal.config.vectors_section import VectorsSection
from shoal.data.dataset import Dataset
from shoal.data.ids import Ids
from shoal.data.loading.vectors import AlignedVectors, read_vectors
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Table
from shoal.embedding.vectors import ProjectedVectors, StoredVectors
from shoal.models.base import Facts, Model

# Fields of a batch whose ids are items; a table that one of them reads has a row for each item.
ITEM_FIELDS = frozenset({"item", "neg_item", "history", "target"})
OUTPUT_FIELDS = frozenset({"output", "next", "new"})  # of a model that also has one of those
SUCH_AS = {
    "item": "SASRec, HSTU, GRU4Rec, BERT4Rec, BPR, LightGCN, LightFM, DSSM, YoutubeDNN or DeepFM",
    "user": "BPR, LightGCN, LightFM, DSSM or YoutubeDNN",
}


@dataclass(frozen=True)
class RunVectors:
    """The vectors that a run's data section names, by side: item, user."""

    by_side: Mapping[str, AlignedVectors]

    @classmethod
    def of(cls, data: DataSection, dataset: Dataset) -> RunVectors:
        """Read and check them for a data set."""
        sides = {
            "item": (data.item_vectors, dataset.item_field),
            "user": (data.user_vectors, dataset.user_field),
        }
        read = {
            side: read_vectors(section, field, Ids(dataset.vocab[field]), side)
            for side, (section, field) in sides.items()
            if section != VectorsSection()
        }
        return cls({side: vectors for side, vectors in read.items() if vectors is not None})

    def fingerprint(self) -> dict[str, str]:
        """What must be the same for a checkpoint to fit."""
        return {f"{side}_vectors": vectors.digest for side, vectors in self.by_side.items()}

    def put_into(self, model: Model, title: str) -> None:
        """Let the model's tables of items and users read them; title: the model, for errors."""
        for side, vectors in self.by_side.items():
            facts = model.facts
            tables = _tables_of(model, facts, side)
            if not tables:
                raise ValueError(
                    f"data.{side}_vectors: {title} has no table with a row for each {side}, so it "
                    f"reads no vectors of {side}s; choose {SUCH_AS[side]}"
                )
            stored = StoredVectors(vectors)
            trained = _trained(facts, side)
            for module, table in tables:
                module.read_vectors(table.name, ProjectedVectors(stored, vectors, table, trained))


def refuse_vectors(data: DataSection, what: str) -> None:
    """Refuse vectors where there are no items and users that they could belong to."""
    for key in ("item_vectors", "user_vectors"):
        if getattr(data, key).file is not None:
            raise ValueError(
                f"data.{key}: {what} has slots, not users and items; train on a table of "
                "interactions (data.files), or leave it out"
            )


def _tables_of(model: Model, facts: Facts, side: str) -> list[tuple[Embeddings, Table]]:
    """The tables that have a row for each item or user, once each."""
    is_item = side == "item"
    field = facts.item_field if is_item else facts.user_field
    size = facts.num_items if is_item else facts.num_users
    read = {field, *ITEM_FIELDS} if is_item else {field, "user"}
    # A feature has ids of its own, unless it lists every one of them as the data does.
    features = {
        f.name for f in facts.features if f.is_sparse and f.vocabulary == "exact" and not f.cross
    }
    read -= {f.name for f in facts.features if f.name not in features}
    read |= {f.name for f in facts.features if f.name in features and f.column == field}
    tables: dict[tuple[int, str], tuple[Embeddings, Table]] = {}
    modules = [one for one in model.modules() if isinstance(one, Embeddings)]
    for names in (read, read | OUTPUT_FIELDS if is_item else read):
        if names is not read and not tables:
            break
        for module in modules:
            for name, table in module.fields.items():
                if name in names and table.rows in (size, size + 1):
                    tables[id(module), table.name] = (module, table)
    return list(tables.values())


def _trained(facts: Facts, side: str) -> Tensor:
    """Which items or users have a training interaction: bool [n]."""
    ids, size = (
        (facts.train_items, facts.num_items)
        if side == "item"
        else (facts.train_users, facts.num_users)
    )
    return torch.bincount(ids, minlength=size) > 0
