"""shoal.fit: train on a frame, and use what came of it.

import shoal
fitted = shoal.fit("SASRec", ratings, user="uid", item="iid", time="ts", epochs=20)
fitted.metrics["recall@10"]
fitted.recommend("u1"), fitted.similar_items("i7"), fitted.item_vectors()
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal import config as config_room
from shoal.clicks import InMemory
from shoal.clicks.encoder import FeatureEncoder
from shoal.config.output import flat
from shoal.data.dataset import Column, Dataset
from shoal.data.features import Feature, options
from shoal.data.ids import Ids
from shoal.data.joined import BatchSamples
from shoal.data.sources.frames import to_polars
from shoal.data.statistics import find_data_warnings
from shoal.files.durable import no_links
from shoal.files.folders import inner_folder
from shoal.launch.hosts import LaunchError
from shoal.models.base import Model
from shoal.models.own import register_model
from shoal.pages import html as look
from shoal.recommender.explanation import Explanation
from shoal.recommender.ranked_items import RankedItems
from shoal.runs.input_data import guess_columns
from shoal.runs.results import RunResult, curve, on_a_line
from shoal.runs.run import resolve, run_folder, train
from shoal.runs.trained_run import Trained
from shoal.training.evaluation import ClickEvaluator, Evaluator
from shoal.training.evaluation.clicks import TILE_ROWS
from shoal.training.run_folder import RunFolder

log = logging.getLogger("shoal")
FRAMES = {"inter": "interactions", "user": "users", "item": "items"}  # by suffix
QUIET = {"run.log_level": ("state", "warning"), "run.trackers": ("", [])}


class ItemVectors(NamedTuple):
    """Original ids [n] and their vectors, float32 [n, dim]."""

    ids: np.ndarray
    vectors: np.ndarray


def fit(
    model: str | type[Model],
    frame: Any,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    label: str | None = None,
    rating: str | None = None,
    users: Any = None,
    items: Any = None,
    features: Sequence[Feature] | None = None,
    **config: Any,
) -> Fitted:
    """Train a model on a frame of interactions; `users` and `items` are frames of their features.

    user, item, time, label, rating: the columns' names; left out, what they look like, and the log
    says what was guessed. Other keywords are config keys, as in shoal.run (`epochs=5`,
    `train={"batch_size": 512}`, `**{"data.split.order": "time"}`).
    features: what columns mean, exactly those; left out, what they suggest.

    >>> import polars, shoal
    >>> rows = [(f"u{n % 40}", n * 7 % 97, n) for n in range(1200)]
    >>> frame = polars.DataFrame(rows, schema=["uid", "iid", "ts"], orient="row")
    >>> quiet = {"run.output": "runs/fitted", "run.progress": False}
    >>> fitted = shoal.fit("BPR", frame, user="uid", item="iid", time="ts", epochs=1, **quiet)
    >>> len(fitted.recommend("u7", topk=3))
    3
    """
    frames_by_suffix = {"inter": frame, "user": users, "item": items}
    frames = {
        suffix: to_polars(table, f"the frame of {FRAMES[suffix]}")
        for suffix, table in frames_by_suffix.items()
        if table is not None or suffix == "inter"
    }
    # The columns that are named must be there.
    named = {"user": user, "item": item, "time": time, "label": label, "rating": rating}
    for key, column in named.items():
        if column is not None and column not in frames["inter"].columns:
            raise ValueError(
                f"{key}={column!r}: the frame has only {', '.join(frames['inter'].columns)}"
            )
    # The config: keys of this call, and defaults that suit a notebook.
    name = register_model(model) if isinstance(model, type) else model
    values: dict[str, Any] = {"model": name, "data.name": "frame", **config}
    values |= {f"data.fields.{key}": name for key, name in named.items() if name is not None}
    values |= {"data.files": {suffix: f"{suffix}.parquet" for suffix in frames}}
    if features is not None:
        values["data.features"] = {feature.name: options(feature) for feature in features}
    keys = flat(values)
    for key, (other, value) in QUIET.items():
        if key not in keys and other not in keys:
            values[key] = value
    values["data.path"] = "."  # known when the folder is
    resolved = resolve(values=values)
    before = len(resolved.read_notes)
    resolved = guess_columns(resolved, frames["inter"].columns, "the frame", '{}="NAME"')
    for note in resolved.read_notes[before:]:
        log.warning("%s", note)  # whoever gave a frame sees warnings alone
    # The run's folder keeps the frames as its data.
    folder = run_folder(resolved.config)
    folder.create(False)
    data = inner_folder(folder.path.resolve(), "data")
    for suffix, table in frames.items():
        with open(data / f"{suffix}.parquet", "wb", opener=no_links) as file:
            table.write_parquet(file)
    place = {"data.path": str(data), "run.output": str(folder.path)}
    try:
        train(resolved.with_values(place, "shoal.fit"))
    except (ValueError, LaunchError) as error:
        error.args = (_of_frames(str(error), data),)
        raise
    return Fitted(folder.path, trust=True)  # it was trained here, just now


def _of_frames(text: str, data: Path) -> str:
    """An error about files that frames were written to, about the frames."""
    for suffix, rows in FRAMES.items():
        name, file = f"the frame of {rows}", f"{data / suffix}.parquet"
        text = re.sub(rf"{re.escape(file)}, row (\d+)", rf"{name}, row \1 (counted from 1)", text)
        text = text.replace(file, name)
    return text


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
            {"epoch": epoch["epoch"], "loss": epoch["loss"]}
            | {f"valid {name}": value for name, value in epoch.get("valid", {}).items()}
            for epoch in epochs
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def evaluate(self, frame: Any) -> dict[str, float]:
        """Metrics on other interactions: what was trained on counts as seen, these are the test.

        Interactions of users and items that are not known are left out, and the log says how many.
        A click model is evaluated on all rows, which need their labels.
        """
        rows = to_polars(frame, "the frame to evaluate")
        if self.trained.model.kind == "clicks":
            return self._evaluate_clicks(rows)
        dataset = self.trained.parts.dataset
        evaluator = self.trained.parts.ranking()
        assert isinstance(dataset, Dataset) and evaluator is not None, "fit reads tables"
        fields = (dataset.user_field, dataset.item_field)
        for name in fields:
            if name not in rows.columns:
                raise ValueError(f"the frame to evaluate has no column {name!r}")
        known_ids = self.trained.recommender.users, self.trained.recommender.items
        ids = [field_ids.find(rows[name].to_list()) for field_ids, name in zip(known_ids, fields)]
        is_known = (ids[0] > 0) & (ids[1] > 0)
        if not is_known.all():
            unknown = len(is_known) - int(is_known.sum())
            log.warning("%d of %d rows name unknown users or items", unknown, len(is_known))
        if not is_known.any():
            raise ValueError("the frame to evaluate has no user and item that are known")
        inter: dict[str, Column] = {
            name: np.concatenate([np.asarray(dataset.inter[name]), numbers[is_known]])
            for name, numbers in zip(fields, ids)
        }
        if dataset.time_field is not None:
            old = np.asarray(dataset.inter[dataset.time_field])
            inter[dataset.time_field] = np.concatenate([old, np.full(int(is_known.sum()), np.inf)])
        trained_rows = np.arange(dataset.num_inter)
        splits = {
            "train": trained_rows,
            "valid": trained_rows[:0],
            "test": np.arange(len(trained_rows), len(trained_rows) + int(is_known.sum())),
        }
        tested = replace(dataset, inter=inter, splits=splits, label_field=None, pairs=None)
        for doubt in find_data_warnings(tested):
            log.warning("%s", doubt)
        tested_evaluator = Evaluator(
            tested,
            evaluator.section,
            evaluator.world,
            evaluator.seed,
            evaluator.max_len,
            evaluator.sequential,
        )
        return tested_evaluator.evaluate(self.trained.model, "test")

    def _evaluate_clicks(self, frame: Any) -> dict[str, float]:
        """Metrics of labelled rows."""
        encoder, evaluator = self.trained.predictor.encoder, self.trained.parts.evaluator
        assert isinstance(encoder, FeatureEncoder), "fit reads tables"
        assert isinstance(evaluator, ClickEvaluator)
        self.trained.predictor.warn_unknown(frame)
        samples = BatchSamples(encoder.labelled(frame))
        reader = InMemory(samples, evaluator.readers["test"].layout, TILE_ROWS, tile=TILE_ROWS)
        frame_evaluator = ClickEvaluator(
            {"test": reader},
            evaluator.section,
            evaluator.world,
            group=evaluator.group,
            sources={"test": "the frame"},
            labels=evaluator.labels,
        )
        return frame_evaluator.evaluate(self.trained.model, "test")

    # ---- answers --------------------------------------------------------------------------------

    def predict(self, frame: Any) -> np.ndarray:
        """The probability of a click of each row of a frame or a dict of columns: [n].

        The columns are those of training, without labels; of several labels it is [n, labels].

        >>> import polars, shoal
        >>> rows = [(f"u{n % 40}", n * 7 % 97, n % 2) for n in range(1200)]
        >>> frame = polars.DataFrame(rows, schema=["uid", "iid", "liked"], orient="row")
        >>> quiet = {"run.output": "runs/clicks", "run.progress": False, "epochs": 1}
        >>> fitted = shoal.fit("LR", frame, user="uid", item="iid", label="liked", **quiet)
        >>> fitted.predict({"uid": ["u7", "somebody"], "iid": [14, 21]}).shape
        (2,)
        """
        return self.trained.predict(frame)

    def recommend(
        self, user: Any = None, topk: int = 10, history: Sequence[Any] | None = None
    ) -> Any:
        """The best items of a user, or for a history (oldest first): (item, score) each.

        Of several users (a list, an array, a column) a dict of them, made in one pass. Unknown
        users and items do not fail: `by` and `unknown` of a ranking report how they were answered.
        """
        return self.trained.recommend(user, topk, history)

    def explain(
        self, user: Any = None, item: Any = None, history: Sequence[Any] | None = None
    ) -> Explanation:
        """Why an item has its score for a user, or for a history: (what, share) each.

        The shares and `rest` add up to `score`; printed, it is a table (docs/reference/explain.md).
        """
        return self.trained.explain(user, item, history)

    def similar_items(self, item: Any, topk: int = 10) -> RankedItems:
        """The items whose vectors point most the same way: (item, cosine) each."""
        return self.trained.recommender.similar_items(item, topk)

    def item_vectors(self) -> ItemVectors:
        """The vector of every item."""
        catalogue = self.trained.recommender.catalogue
        vectors = catalogue.item_vectors[1:].numpy()
        return ItemVectors(_ids(catalogue.items), vectors)

    def user_vectors(self) -> ItemVectors:
        """The vector of every user; of sequential models, that of the user's whole history."""
        catalogue = self.trained.recommender.catalogue
        _ = catalogue.item_vectors  # refuses a model that has none
        vectors = catalogue.of_users(np.arange(1, len(catalogue.users)))
        return ItemVectors(_ids(catalogue.users), vectors.numpy())

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
        return f"Fitted({self.result['model']}: {on_a_line(self.metrics)}; {self.folder})"

    def _repr_html_(self) -> str:
        """Data, metrics and curve for notebooks."""
        result, dataset = RunResult(self.result), self.trained.parts.dataset
        about = ""
        if isinstance(dataset, Dataset):
            about = (
                f"{dataset.num_inter:,} interactions of {dataset.num_users - 1:,} users and "
                f"{dataset.num_items - 1:,} items"
            )
        title = look.join([result.title(), look.Html("<br>"), about]) if about else result.title()
        return look.inline(title, look.grid(result.table(), curve(self.curves)))


def _ids(ids: Ids) -> np.ndarray:
    """Every id, in its type."""
    kinds = {int: np.int64, float: np.float64}
    return ids.values[1:].astype(kinds[ids.kind]) if ids.kind in kinds else ids.values[1:]
