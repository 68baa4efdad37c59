"""Writer: the parts of one artifact, and what a check asks of it.

Rows pass through in chunks; no process ever holds more than the store itself and a chunk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

import shoal
from shoal.clicks import ClickData
from shoal.clicks.encoder import FeatureEncoder
from shoal.data.batch import Batch, Jagged
from shoal.data.dataset import Dataset
from shoal.data.history import Histories
from shoal.data.loading.captions import captions_of
from shoal.data.sampler import SeenPairs
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Init, Table
from shoal.files.durable import write_durably
from shoal.models.base import ClickModel, Model, Retrieval
from shoal.models.folding import LayersFolding, SumsFolding
from shoal.models.general.ials import IALS
from shoal.models.general.item_weights import ItemWeights
from shoal.models.general.pop import Pop
from shoal.models.nn.item_features import ItemFeatures
from shoal.models.sequential.extending import Extending
from shoal.recommender.catalogue import ALL, RunCatalogue
from shoal.runs.trained_run import Trained
from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import FOLDING, FOLDING_LAYERS, POPULARITY, Artifact
from shoal.serving.artifact.encoding import write_encoder
from shoal.serving.artifact.new_codes import codes_entry
from shoal.serving.artifact.projection import (
    ENTRY,
    ProjectedTable,
    projected_tables,
    write_projection,
)
from shoal.serving.artifact.projector import CODES_ENTRY
from shoal.serving.artifact.tables import CHUNK_ROWS, Kind, RowTable, write_table
from shoal.serving.artifact.trace import Traced, item_features, trace
from shoal.training.evaluation import ClickEvaluator, Evaluator
from shoal.training.evaluation.splits import UserLists


class Writer:
    """Writes the parts of one artifact."""

    def __init__(
        self, trained: Trained, folder: Path, rows: Kind, base: Artifact | None, histories: bool
    ):
        self.trained = trained
        self.folder = folder
        self.rows = rows
        self.base = base
        self.model: Model = trained.model
        self.config = trained.config
        self.parts = trained.parts
        self.histories = histories
        self.tables: dict[str, Any] = {}
        self.extending: Traced | None = None  # the graph that extends a history
        self.signature: dict[str, Any] = {
            "shoal": shoal.__version__,
            "model": self.config.model.title,
            "options": self.config.model.options,
            "data": self.config.data.title,
            "step": trained.state["step"],
            "graph": None,
            "query": None,
            "rows": rows,
            "base": None,
        }
        if base is not None:
            if base.model != self.config.model.title:
                raise ValueError(f"{base.folder} is {base.model}, not {self.config.model.title}")
            sha256 = base.manifest["sha256"]
            self.signature["base"] = {"name": base.folder.resolve().name, "sha256": sha256}

    def write(self) -> dict[str, Tensor]:
        """Write all parts; the questions of a check and the trained model's answers, by name."""
        traced: Traced | None
        with torch.inference_mode():
            if isinstance(self.model, ClickModel):
                traced, reference = self._clicks()
            else:
                traced, reference = self._catalogue()
            if traced is not None:
                write_graph(self.folder, traced, self.extending)
                stores, features = self.parts.strategy.stores, item_features(self.model)
                projected = projected_tables(self.model)
                for name in traced[0]["tables"]:
                    if name in features:
                        count = self.model.facts.num_items
                        self._write_vectors(name, count, partial(_flat, features[name]))
                    elif name in projected:
                        self._write_projected(projected[name])
                    else:
                        self._write_rows(stores[name].table, stores[name].export(CHUNK_ROWS))
            if self.config.data.item_vectors.file is not None:
                self.signature[ENTRY] = write_projection(
                    self.folder,
                    self.model,
                    self.config.data.item_vectors,
                    traced,
                    self.signature["kind"],
                )
            if (codes := codes_entry(self.model, self.config.data.codes)) is not None:
                self.signature[CODES_ENTRY] = codes
        self.signature["tables"] = self.tables
        text = json.dumps(self.signature, indent=1)
        write_durably(self.folder / files.SIGNATURE, text.encode())
        return reference

    # ---- models that rank a catalogue -----------------------------------------------------------

    def _catalogue(self) -> tuple[Traced | None, dict[str, Tensor]]:
        dataset, evaluator = self.parts.dataset, self.parts.evaluator
        assert isinstance(dataset, Dataset) and isinstance(evaluator, Evaluator)
        model, sequential = self.model, self.model.kind == "sequential"
        max_len = self.config.data.max_len
        # All that a user took, as Trained.recommend reads it.
        histories = Histories(dataset, ALL, max_len, model.reads_times, with_context=True)
        self.signature |= {
            "max_len": max_len,
            "repeatable": self.config.eval.repeatable,
            "user_field": dataset.user_field,
            "item_field": dataset.item_field,
            "id_types": [one.__name__ for one in self.trained.types],
        }
        # Words, popularity and histories.
        files.write_words(self.folder, "users", dataset.vocab[dataset.user_field])
        files.write_words(self.folder, "items", dataset.vocab[dataset.item_field])
        for role, texts in captions_of(dataset, self.config.data).items():
            files.write_words(self.folder, role, texts)
        save_file({"counts": evaluator.popularity}, self.folder / POPULARITY)
        if self.histories:
            taken = {
                "items": torch.from_numpy(histories.items.astype(np.int32)),
                "offsets": torch.from_numpy(histories.offsets),
            }
            if histories.times is not None:
                taken["times"] = torch.from_numpy(histories.times)
            if isinstance(model, IALS):
                taken["learned"] = torch.from_numpy(_learned(dataset, histories))
            taken |= self._earlier(dataset)
            save_file(taken, self.folder / "histories.safetensors")
        # Users of the test split, or any, spread over all of them.
        users = np.unique(dataset.user_ids("test"))
        users = users if len(users) else np.arange(1, dataset.num_users)
        users = users[np.linspace(0, len(users) - 1, min(len(users), 64)).astype(np.int64)]
        # The graph and the vectors.
        read = histories if sequential else None
        traced = None
        if isinstance(model, Retrieval):
            self.signature["kind"] = "retrieval"
            if sequential:
                traced = self._trace(evaluator.query(users, read), model.encode_query)
                self.signature["query"] = "graph"
                if isinstance(model, Extending) and model.state_width:
                    self.extending = self._extending(model)
            else:
                self.signature["query"] = "user"
                self._write_vectors(
                    "query_vectors",
                    dataset.num_users,
                    lambda users: model.encode_query(evaluator.query(users.cpu().numpy(), None)),
                )
            self._write_vectors("item_vectors", dataset.num_items, model.encode_item)
            self._write_folding(model, dataset)
        else:
            traced = self._score_graph(evaluator.query(users, read), evaluator)
        self.signature["explained_by"] = self._explained_by(evaluator)
        return traced, self._ask(evaluator, dataset, users, read)

    def _write_folding(self, model: Retrieval, dataset: Dataset) -> None:
        """How a history of anybody becomes a query, where the model reads none."""
        folding = None if model.kind == "sequential" else model.folding()
        if folding is None:
            return
        facts = {key.name: getattr(folding, key.name) for key in fields(folding)}
        if isinstance(folding, SumsFolding | LayersFolding):
            rows = facts.pop("vectors")
            self._write_vectors(FOLDING, dataset.num_items, lambda ids: rows[ids])
        if isinstance(folding, LayersFolding):
            facts["tanh"] = [layer.tanh for layer in facts.pop("layers")]
            tensors = {
                f"{number}.{name}": tensor.detach().cpu().contiguous().clone()
                for number, layer in enumerate(folding.layers)
                for name, tensor in (("weight", layer.weight), ("bias", layer.bias))
                if tensor is not None
            }
            save_file(tensors, self.folder / FOLDING_LAYERS)
        self.signature["folding"] = {"way": folding.way, **facts}

    def _earlier(self, dataset: Dataset) -> dict[str, Tensor]:
        """All that users took before this run's data, where the run went on from another."""
        users, items = self.trained.earlier
        if not len(users):
            return {}
        lists = UserLists.of(users, items, np.arange(dataset.num_users), dataset.num_users)
        return {
            "earlier_items": torch.from_numpy(lists.items.astype(np.int32)),
            "earlier_offsets": torch.from_numpy(lists.offsets),
        }

    def _explained_by(self, evaluator: Evaluator) -> str | None:
        """How the artifact explains a score: as the run does, or not at all."""
        way = RunCatalogue(self.model, evaluator).explained_by
        if isinstance(self.model, Pop) or self.signature["query"] == "constant":
            return "alike"
        if way == "terms":  # vectors of ItemWeights have a number for each item
            if isinstance(self.model, ItemWeights) and self.model.rest_is is None:
                return "terms"
            return self._solved(self.model) if isinstance(self.model, IALS) else None
        kept = {"vectors": True, "history": self.model.kind == "sequential"}  # nothing is folded in
        return way if way is not None and kept.get(way) else None

    def _solved(self, model: IALS) -> str | None:
        """The weights of the equations that vectors of users solve; None: pairs have their own."""
        options = model.options
        if model.taken.weights is not None or options.alpha_of != "all" or not self.histories:
            return None
        names = ("alpha", "reg_weight", "nu")
        self.signature["equations"] = {name: getattr(options, name) for name in names}
        return "solved"

    def _score_graph(self, batch: Batch, evaluator: Evaluator) -> Traced | None:
        """The graph of a model that scores pairs: users and a list of items -> scores. None where
        the user does not matter: then an item has one score for all.
        """
        items = torch.ones(5, dtype=torch.int64)

        def score(pairs: Batch) -> Tensor:
            ids = dict(pairs.ids)
            item_ids = ids.pop("items")
            assert isinstance(item_ids, Tensor)
            return self.model.score(Batch(pairs.size, ids, pairs.dense), item_ids)

        traced = self._trace(batch, score, {"items": items})
        used = {one["name"] for one in traced[0]["inputs"] if one["used"]}
        if used - {"items"}:
            self.signature |= {"kind": "scorer", "query": "items"}
            return traced
        self.signature |= {"kind": "retrieval", "query": "constant", "graph": None}
        anyone = evaluator.query(np.zeros(1, np.int64), None)
        count = self.model.facts.num_items
        self._write_vectors(
            "item_vectors", count, lambda ids: self.model.score(anyone, ids)[0, :, None]
        )
        return None

    def _extending(self, model: Extending) -> Traced:
        """The graph that computes new places of one history behind kept ones."""
        sizes = {"new": 3, "taken": 3, "asked": 3, "kept_taken": 5}  # traced as any
        device = self.trained.world.device
        with torch.inference_mode(False):
            ids = {name: torch.ones(one, dtype=torch.int64) for name, one in sizes.items()}
            batch = Batch(3, {**ids}, {"kept": torch.zeros(5, model.state_width)})
            traced = trace(model, batch.to(device), model.extended)
        self.signature["extend"] = {"graph": "extend.json", "width": model.state_width}
        return traced

    def _trace(
        self,
        batch: Batch,
        answer: Any,
        extra_inputs: dict[str, Tensor] | None = None,
        lists: Collection[str] = (),
    ) -> Traced:
        self.signature["graph"] = "graph.json"
        small = batch.rows(0, min(batch.size, 3))  # its size is traced as any size
        with torch.inference_mode(False):
            copy = Batch(
                small.size,
                {name: small.tensor(name).clone() for name in small.ids},
                {name: one.clone() for name, one in small.dense.items()},
            )
            copied_inputs = {name: one.clone() for name, one in (extra_inputs or {}).items()}
            return trace(self.model, copy, answer, copied_inputs, lists)

    def _write_vectors(self, name: str, count: int, encode: Callable[[Tensor], Tensor]) -> None:
        """The vectors of users or items 0..count-1, as `encode` makes them of their numbers."""

        def vectors(ids: Tensor) -> Tensor:
            return encode(ids.to(self.trained.world.device)).float().cpu()

        ids = torch.arange(count)
        dim = vectors(ids[:1]).shape[1]
        chunks = (Rows(some, vectors(some)) for some in ids.split(CHUNK_ROWS))
        self._write_rows(Table(name, dim, count, Init("constant", 0.0)), chunks)

    def _ask(
        self, evaluator: Evaluator, dataset: Dataset, users: np.ndarray, histories: Histories | None
    ) -> dict[str, Tensor]:
        """The reference of a check: scores of items for users, and lists of a few of the users."""
        count = min(dataset.num_items - 1, 256)
        items = torch.from_numpy(np.linspace(1, dataset.num_items - 1, count).astype(np.int64))
        batch = evaluator.query(users, histories)
        scores = self.model.score(batch, items.to(self.trained.world.device)).float().cpu()
        reference = {f"ids.{name}": batch.tensor(name).cpu() for name in batch.ids}
        reference |= {"items": items, "scores": scores.contiguous()}
        if self.histories:
            first_users = users[:8]
            lists = self.trained.recommender.rank_users(first_users, 10)
            for user, best, best_scores in zip(first_users.tolist(), *lists):
                reference[f"list.{user}.items"] = torch.from_numpy(best[best > 0])
                reference[f"list.{user}.scores"] = torch.from_numpy(best_scores[best > 0])
        return reference

    # ---- click models ---------------------------------------------------------------------------

    def _clicks(self) -> tuple[Traced, dict[str, Tensor]]:
        data, evaluator, model = self.parts.dataset, self.parts.evaluator, self.model
        assert isinstance(evaluator, ClickEvaluator) and isinstance(model, ClickModel)
        facts = model.facts
        labels = [[one.name, one.loss] for one in facts.labels]
        self.signature |= {"kind": "clicks", "labels": labels or [["click", "logistic"]]}
        layout = data.layout if isinstance(data, ClickData) else None
        if isinstance(data, ClickData):
            self.signature |= {
                "format": data.form,
                "separator": self.config.data.separator,
                "layout": asdict(data.layout),
            }
        else:  # interactions with the features of both sides
            self.signature |= {"format": "features", "layout": None}
            encoder = self.parts.encoder(self.config.data)
            assert isinstance(encoder, FeatureEncoder)
            write_encoder(self.folder, encoder)
        reader = evaluator.readers.get("test") or self.parts.reader
        reference: dict[str, Tensor] = {}
        example = None
        for number, batch in zip(range(4), reader.batches(0)):
            if not batch.size:
                break
            batch = batch.rows(0, min(batch.size, 1 << 12))
            reference |= fields_of(batch, f"{number}.")
            reference[f"{number}.logits"] = model.logits(batch.to(self.trained.world.device)).cpu()
            example = example or batch
        if example is None:
            raise ValueError(
                "there is no sample to check the artifact with; name data that has some"
            )
        sparse = {feature.name for feature in facts.sparse} if facts.per_feature else set()
        lists = {
            name
            for name, ids in example.ids.items()
            if name in sparse and (layout or isinstance(ids, Jagged))
        }
        traced = self._trace(_one_id_each(example), model.logits, lists=lists)
        # Of a click log with a field for each feature: the column that each is.
        used = {one["name"] for one in traced[0]["inputs"] if one["used"]} if layout else set()
        columns = {f.name: f.column for f in facts.features if facts.per_feature}
        self.signature["apart"] = {k: column for k, column in columns.items() if k in used}
        return traced, reference

    # ---- what both write ------------------------------------------------------------------------

    def _write_rows(self, table: Table, chunks: Iterator[Rows]) -> None:
        base: RowTable | None = None
        if self.base is not None:
            base = self.base.tables.get(table.name)
            base = base if base is not None and base.dim == table.dim else None
        seed = self.config.run.seed
        self.tables[table.name] = write_table(self.folder, table, chunks, self.rows, seed, base)
        self._share(table.name)

    def _write_projected(self, projected: ProjectedTable) -> None:
        """The rows of a table with the vectors of their ids."""
        device = self.trained.world.device
        chunks = (
            Rows(ids, projected.rows(ids.to(device)).float().cpu())
            for ids in torch.arange(projected.table.rows or 0).split(CHUNK_ROWS)
        )
        self._write_rows(replace(projected.table, init=Init("constant", 0.0)), chunks)

    def _share(self, name: str) -> None:
        """Item vectors that are the rows of a table are not written twice."""
        other = "item_vectors"
        if name == other or other not in self.tables:
            return
        facts, other_facts = self.tables[name], self.tables[other]
        if {**facts, "init": 0, "padding": 0} != {**other_facts, "init": 0, "padding": 0}:
            return
        kinds = ("rows", "ids", "scale")
        pairs = [[self.folder / f"{k}-{n}.safetensors" for n in (name, other)] for k in kinds]
        counts = [[files.count(path) if path.exists() else None for path in pair] for pair in pairs]
        if all(a == b for a, b in counts):
            for _, path in pairs:
                path.unlink(missing_ok=True)
            self.tables[other] = {**other_facts, "same_as": name}


def write_graph(folder: Path, traced: Traced, extending: Traced | None = None) -> None:
    """Write the graph of a model, that which extends a history, and the tensors that they read."""
    document, tensors = traced
    dense = {name: tensor.contiguous().cpu().clone() for name, tensor in tensors.items()}
    if extending is not None:
        other, extra_tensors = extending
        for place, name in other["dense"].items():
            tensor = extra_tensors[name].contiguous().cpu().clone()
            if name in dense and not torch.equal(dense[name], tensor):
                other["dense"][place] = name = f"extend.{name}"
            dense[name] = tensor
        write_durably(folder / "extend.json", json.dumps(other, indent=1).encode())
    save_file(dense, folder / "dense.safetensors")
    write_durably(folder / "graph.json", json.dumps(document, indent=1).encode())


def _learned(dataset: Dataset, histories: Histories) -> np.ndarray:
    """Marks of the items of all histories that a model learned from: 0 or 1 [items]."""
    seen = SeenPairs(
        dataset.user_ids("train"),
        dataset.item_ids("train"),
        dataset.num_users,
        dataset.num_items,
    )
    owners = np.repeat(np.arange(dataset.num_users), np.diff(histories.offsets))
    return seen.contains(owners, histories.items).astype(np.uint8)


def _flat(features: ItemFeatures, ids: Tensor) -> Tensor:
    """The vectors of all features of items side by side: [n, features * dim]."""
    return features(ids).flatten(-2)


def fields_of(batch: Batch, prefix: str) -> dict[str, Tensor]:
    """A batch as tensors by name."""
    fields: dict[str, Tensor] = {}
    for name, ids in batch.ids.items():
        if isinstance(ids, Jagged):
            fields[f"{prefix}values.{name}"] = ids.values
            fields[f"{prefix}offsets.{name}"] = ids.offsets
            if ids.weights is not None:
                fields[f"{prefix}weights.{name}"] = ids.weights
        else:
            fields[f"{prefix}ids.{name}"] = ids
    fields |= {f"{prefix}dense.{name}": one for name, one in batch.dense.items()}
    return {name: one.cpu().clone() for name, one in fields.items()}


def _one_id_each(batch: Batch) -> Batch:
    """A copy of a batch, to trace a graph with, whose lists hold one id each."""
    ids: dict[str, Tensor | Jagged] = {}
    for name, values in batch.ids.items():
        if isinstance(values, Jagged):
            places = [len(values) // batch.size] if name == "slots" else []
            ids[name] = torch.ones([batch.size, *places], dtype=torch.int64)
        else:
            ids[name] = values
    return Batch(batch.size, ids, batch.dense)
