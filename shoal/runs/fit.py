"""shoal.fit: train on a frame, and use what came of it.

import shoal
fitted = shoal.fit("SASRec", ratings, user="uid", item="iid", time="ts", epochs=20)
fitted.metrics["recall@10"]
fitted.recommend("u1"), fitted.similar_items("i7"), fitted.item_vectors()
"""

from __future__ import annotations

import html
import json
import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from shoal import config as config_room
from shoal.config.output import flat
from shoal.data.dataset import Column, Dataset
from shoal.data.doubts import doubts
from shoal.data.features import Feature, options
from shoal.data.sources.frames import to_polars
from shoal.models.base import Model, Retrieval
from shoal.models.own import give
from shoal.runs.run import resolve, run_folder, train
from shoal.runs.trained import Trained
from shoal.training.evaluation import Evaluator
from shoal.training.run_folder import RunFolder

log = logging.getLogger("shoal")
BLOCK = 1024  # vectors made at a time
QUIET = {"run.log_level": ("state", "warning"), "run.tensorboard": ("", False)}


class Vectors(NamedTuple):
    """Original ids [n] and their vectors, float32 [n, dim]."""

    ids: np.ndarray
    vectors: np.ndarray


def fit(
    model: str | type[Model],
    frame: Any,
    user: str = "user_id",
    item: str = "item_id",
    time: str | None = None,
    label: str | None = None,
    rating: str | None = None,
    users: Any = None,
    items: Any = None,
    features: Sequence[Feature] | None = None,
    **config: Any,
) -> Fitted:
    """Train a model on a frame of interactions; `users` and `items` are frames of their features.

    user, item, time, label, rating: the columns' names. Other keywords are config keys, as in
    shoal.run (`epochs=5`, `train={"batch_size": 512}`, `**{"data.split.order": "time"}`).
    features: what columns mean, exactly those; left out, what they suggest.

    >>> import polars, shoal
    >>> rows = [(f"u{n % 20}", n * n % 97, n) for n in range(600)]
    >>> frame = polars.DataFrame(rows, schema=["uid", "iid", "ts"], orient="row")
    >>> quiet = {"run.output": "runs/fitted", "run.progress": False}
    >>> fitted = shoal.fit("BPR", frame, user="uid", item="iid", time="ts", epochs=1, **quiet)
    >>> len(fitted.recommend("u7", topk=3))
    3
    """
    frames = {"inter": to_polars(frame, "the frame of interactions")}
    if users is not None:
        frames["user"] = to_polars(users, "the frame of users")
    if items is not None:
        frames["item"] = to_polars(items, "the frame of items")
    named = {"user": user, "item": item, "time": time, "label": label, "rating": rating}
    for key, column in named.items():
        if column is not None and column not in frames["inter"].columns:
            raise ValueError(
                f"{key}={column!r}: the frame has no such column; it has "
                f"{', '.join(frames['inter'].columns)}"
            )
    name = give(model) if isinstance(model, type) else model
    values: dict[str, Any] = {"model": name, "data.name": "frame", **config}
    values |= {f"data.fields.{key}": name for key, name in named.items() if name is not None}
    values |= {"data.files": {suffix: f"{suffix}.parquet" for suffix in frames}}
    if features is not None:
        values["data.features"] = {feature.name: options(feature) for feature in features}
    given = flat(values)
    for key, (other, value) in QUIET.items():
        if key not in given and other not in given:
            values[key] = value
    values["data.path"] = "."  # known when the folder is
    resolved = resolve(values=values)
    folder = run_folder(resolved.config)
    folder.create(False)
    data = folder.path.resolve() / "data"
    data.mkdir(exist_ok=True)
    for suffix, one in frames.items():
        one.write_parquet(data / f"{suffix}.parquet")
    place = {"data.path": str(data), "run.output": str(folder.path)}
    train(resolved.with_values(place, "shoal.fit"))
    return Fitted(folder.path, trust=True)  # it was trained here, just now


class Fitted:
    """A trained model: its figures, its vectors and recommendations. Ids are the frame's own."""

    def __init__(self, folder: str | Path, trust: bool = False):
        """Open the folder of `save`, or of a run; trust: run code that it names (a model)."""
        self.folder = Path(folder)
        self.trained = Trained(folder, trust=trust)
        self.result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())

    # ---- figures --------------------------------------------------------------------------------

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the test split."""
        return self.result["test"]

    @property
    def curves(self) -> dict[str, list[float | None]]:
        """By epoch: `loss`, and each metric of the valid split as `valid recall@10`."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        epochs = [json.loads(line) for line in lines]
        rows = [
            {"epoch": one["epoch"], "loss": one["loss"]}
            | {f"valid {name}": value for name, value in one.get("valid", {}).items()}
            for one in epochs
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def evaluate(self, frame: Any) -> dict[str, float]:
        """Metrics on other interactions: what was trained on counts as seen, these are the test.

        Interactions of users and items that are not known are left out, and the log says how many.
        """
        dataset, evaluator = self._ranking()
        if self.trained.model.kind == "clicks":
            raise ValueError(
                f"{self.result['model']} is evaluated on labelled samples: train with them as the "
                "test part (data.files.test), or rank with recommend"
            )
        given = to_polars(frame, "the frame to evaluate")
        fields = (dataset.user_field, dataset.item_field)
        for name in fields:
            if name not in given.columns:
                raise ValueError(f"the frame to evaluate has no column {name!r}")
        ids = [_known(dataset.vocab[name], given[name].to_list()) for name in fields]
        known = (ids[0] > 0) & (ids[1] > 0)
        if not known.all():
            log.warning("%d of %d rows name users or items that are not known", *_count(~known))
        if not known.any():
            raise ValueError("the frame to evaluate has no user and item that are known")
        inter: dict[str, Column] = {
            name: np.concatenate([np.asarray(dataset.inter[name]), one[known]])
            for name, one in zip(fields, ids)
        }
        if dataset.time_field is not None:
            old = np.asarray(dataset.inter[dataset.time_field])
            inter[dataset.time_field] = np.concatenate([old, np.full(int(known.sum()), np.inf)])
        every = np.arange(dataset.num_inter)
        splits = {
            "train": every,
            "valid": every[:0],
            "test": np.arange(len(every), len(every) + int(known.sum())),
        }
        tested = replace(dataset, inter=inter, splits=splits, label_field=None, pairs=None)
        for doubt in doubts(tested):
            log.warning("%s", doubt)
        asked = Evaluator(
            tested,
            *(evaluator.section, evaluator.world, evaluator.seed),
            *(evaluator.max_len, evaluator.sequential),
        )
        return asked.evaluate(self.trained.model, "test")

    # ---- answers --------------------------------------------------------------------------------

    def recommend(self, user: Any, topk: int = 10) -> Any:
        """The best items of a user, (item, score) each; of several users a dict of them."""
        if isinstance(user, list | tuple | np.ndarray):
            return {one: self.recommend(one, topk) for one in _plain(user)}
        _, item_type = self._types
        return [(item_type(i), score) for i, score in self.trained.recommend(str(user), topk)]

    def similar_items(self, item: Any, topk: int = 10) -> list[tuple[Any, float]]:
        """The items whose vectors point most the same way: (item, cosine) each."""
        ids, vectors = self.item_vectors()
        found = np.flatnonzero(ids == item)
        if len(found) == 0:
            raise ValueError(f"item {item!r} is not known; items are {_some(ids)}")
        lengths = np.linalg.norm(vectors, axis=1)
        unit = vectors / np.where(lengths == 0, 1, lengths)[:, None]
        cosine = unit @ unit[found[0]]
        cosine[found[0]] = -np.inf
        best = np.argsort(-cosine, kind="stable")[: min(topk, len(ids) - 1)]
        return [(_item(ids[k]), float(cosine[k])) for k in best]

    def item_vectors(self) -> Vectors:
        """The vector of every item."""
        dataset, model = self._ranking()[0], self._retrieval()
        with torch.inference_mode():
            every = torch.arange(1, dataset.num_items)
            made = [model.encode_item(part).float().numpy() for part in every.split(BLOCK)]
        words = dataset.vocab[dataset.item_field][1:]
        return Vectors(_ids(words, self._types[1]), np.concatenate(made))

    def user_vectors(self) -> Vectors:
        """The vector of every user; of sequential models, that of the user's whole history."""
        (dataset, evaluator), model = self._ranking(), self._retrieval()
        histories = evaluator.histories(("train", "valid", "test"))
        made = []
        with torch.inference_mode():
            for start in range(1, dataset.num_users, BLOCK):
                users = np.arange(start, min(start + BLOCK, dataset.num_users))
                batch = evaluator.query(users, histories)
                made.append(model.encode_query(batch).float().numpy())
        words = dataset.vocab[dataset.user_field][1:]
        return Vectors(_ids(words, self._types[0]), np.concatenate(made))

    def save(self, folder: str | Path) -> Path:
        """Copy the run, with its data, to a folder; Fitted(folder) and `shoal eval` open it."""
        target = Path(folder)
        if target.exists():
            raise ValueError(f"{target} is there already; name a new folder")
        shutil.copytree(self.folder, target)
        place = {"data.path": str(target.resolve() / "data"), "run.output": str(target)}
        resolved = resolve([self.folder / "config.yaml"], values=place, trust=True)  # our own
        RunFolder(target).write_config(config_room.dump(resolved.config))
        return target

    # ---- showing --------------------------------------------------------------------------------

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"Fitted({self.result['model']}: {shown})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        valid = self.result["best_valid"]
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{_figure(valid.get(name))}</td>"
            f"<td>{_figure(value)}</td></tr>"
            for name, value in self.metrics.items()
        )
        title = f"{self.result['model']}: {self.result['epochs']} epochs"
        if self.result["best_epoch"] is not None:
            title += f", best after epoch {self.result['best_epoch']}"
        return (
            f"<table><caption>{html.escape(title)}</caption>"
            f"<tr><th>metric</th><th>valid</th><th>test</th></tr>{rows}</table>"
        )

    # ---- parts ----------------------------------------------------------------------------------

    def _ranking(self) -> tuple[Dataset, Evaluator]:
        parts = self.trained.parts
        evaluator = parts.ranking(self.trained.config)
        assert isinstance(parts.dataset, Dataset) and evaluator is not None, "fit reads tables"
        return parts.dataset, evaluator

    def _retrieval(self) -> Retrieval:
        model = self.trained.model
        if not isinstance(model, Retrieval):
            raise ValueError(
                f"{self.result['model']} scores by more than a product of two vectors, so users "
                "and items have none; recommend works"
            )
        return model

    @property
    def _types(self) -> tuple[type, type]:
        """Of the frame's users and items: int, or str."""
        import polars as pl

        dataset = self._ranking()[0]
        file = Path(self.trained.config.data.path) / "inter.parquet"
        if not file.is_file():  # a run of other data
            return str, str
        schema = pl.read_parquet_schema(file)
        found = [schema[name].is_integer() for name in (dataset.user_field, dataset.item_field)]
        return int if found[0] else str, int if found[1] else str


def _ids(words: np.ndarray, type_: type) -> np.ndarray:
    return words.astype(np.int64) if type_ is int else words.copy()


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _plain(values: Iterable[Any]) -> list[Any]:
    return [_item(value) for value in values]


def _known(vocab: np.ndarray, values: list[Any]) -> np.ndarray:
    """Ids of original ids, 0 where there is none."""
    index = {word: number for number, word in enumerate(vocab.tolist()) if number}
    return np.array([index.get(str(value), 0) for value in values], np.int64)


def _count(mask: np.ndarray) -> tuple[int, int]:
    return int(mask.sum()), len(mask)


def _some(ids: np.ndarray) -> str:
    return ", ".join(map(str, ids[:5])) + ", ..."


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
