"""Projector: makes the rows of new items of their vectors, by what an artifact keeps of its own.

projection.py writes what is read here. A new item has no row that learned, so each table reads W v
of it, as it does for an item of the data without a training interaction. What is ranked is made of
that by the artifact's own graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.serving.artifact import files
from shoal.serving.artifact.graph import ExportedGraph
from shoal.serving.artifact.projection import ENTRY, FILE, GRAPH, TRAIN_ANEW

RANKED = "item_vectors"  # the table of what is ranked
CODES_ENTRY = "item_codes"  # what the signature says of the codes of items
BLOCK = 1 << 14  # vectors that are projected at a time


class Projector:
    """What an artifact knows of the vectors of its items.

    width: numbers of a vector; dim: of what is ranked; refusal: why it takes no new items; None: it
    does.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], signature: dict[str, Any]):
        self.where = f"artifact {folder}: {ENTRY}"
        self.refusal = _refusal(folder, signature)
        if self.refusal is not None:
            return
        with files.damaged(self.where):
            self._entry = dict(signature[ENTRY])
            self.width = int(self._entry["width"])
            self.dim = int(signature["tables"][RANKED]["dim"])
            self._kept = files.read_tensors(folder, FILE, manifest)
            document = files.read_json(folder, GRAPH, manifest)
            of_graph = {
                name.removeprefix("graph."): tensor
                for name, tensor in self._kept.items()
                if name.startswith("graph.")
            }
            weights = {name: self._kept[f"weight.{name}"] for name in self._entry["tables"]}
            for weight in weights.values():
                if weight.dim() != 2 or weight.shape[1] != self.width:
                    raise ValueError("a matrix of another width")
            dims = {name: len(weight) for name, weight in weights.items()}
            self._weights = weights
            self._graph = ExportedGraph(document, of_graph, dims, f"{folder}/{GRAPH}")
            self._graph.check()

    @property
    def table_names(self) -> list[str]:
        """The tables that read vectors."""
        return list(self._weights)

    def rows(self, vectors: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Table -> rows of new items [n, dim], what is ranked among them.

        vectors [n, width] as they come, lengths [n]: theirs.
        """
        with files.damaged(self.where), torch.no_grad():
            numbers = self._normalised(vectors, lengths)
            rows = {name: numbers @ weight.T for name, weight in self._weights.items()}

            def lookup(table: str, ids: Tensor | Jagged, how: str) -> Tensor:
                assert isinstance(ids, Tensor)
                return rows[table][ids]

            parts = torch.arange(len(numbers)).split(BLOCK)
            ranked = torch.cat([self._graph({"items": ids}, lookup) for ids in parts])
            if ranked.shape != (len(numbers), self.dim):
                raise ValueError("the graph of items gives vectors of another width")
        return {**rows, RANKED: ranked}

    def _normalised(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Vectors as the model reads them: [n, width]; those of zeros stay so."""
        numbers = vectors.float()
        if self._entry["normalise"] == "unit":
            numbers = numbers / lengths.clamp(min=1e-30).unsqueeze(1)
        if self._entry["normalise"] == "standard":
            numbers = (numbers - self._kept["mean"]) * self._kept["factor"]
        return numbers * (lengths > 0).unsqueeze(1)


def _refusal(folder: Path, signature: dict[str, Any]) -> str | None:
    """Why an artifact takes no new items."""
    entry, model = signature.get(ENTRY), signature["model"]
    if isinstance(signature.get(CODES_ENTRY), dict):
        return (
            f"{folder}: {model} knows items by their codes, not by vectors: give the new ones "
            "codes (shoal codes append CODES.json VECTORS --to NEW.json), and then the artifact "
            "those: shoal artifact add-items ARTIFACT NEW.json --to FOLDER"
        )
    if not isinstance(entry, dict):
        return (
            f"{folder}: {model} was trained without vectors of items, so nothing is known of a new "
            "one; train it with data.item_vectors"
        )
    if "refused" in entry:
        return f"{folder}: {model} takes no new items: {str(entry['refused'])[:300]}; {TRAIN_ANEW}"
    if signature["base"] is not None:
        return (
            f"{folder} is a delta of {signature['base']['name']}; export it whole, and add items "
            "to that"
        )
    return None
