"""Features that predict the label too well by themselves: outcomes that were taken for features.

A column such as `bought` beside `clicked` is known only after the click. A model that reads it has
a high AUC in every test, and none in service. So each feature is tried alone: half of a sample of
rows tells the share of clicks of each value, and these shares rank the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.clicks import ClickReader
from shoal.data.batch import Batch, Jagged
from shoal.data.features import Feature
from shoal.data.random import hash64
from shoal.training.metrics.pairs import pair_counts

SAMPLE_ROWS = 20_000  # rows of a check; of many features fewer, so that it takes about a second
SAMPLE_CELLS = 4_000_000
FEWEST_ROWS = 1000
BUCKETS = 64  # of numbers, with equal counts
PRIOR = 5.0  # rows that the share of a value begins with, at the share of all
SUSPICIOUS = 0.75  # AUC alone: few honest features come there
NEAR = 0.9  # of what the model's AUC is above .5
MOST_SHOWN = 30  # features in result.json
REMEDY = "leave its column out (data.unload)"
CERTAIN = 3.0  # standard errors that a difference from chance must have


@dataclass(frozen=True)
class SingleFeature:
    """AUC of one feature alone, and its standard error."""

    name: str
    auc: float
    error: float

    @property
    def is_suspicious(self) -> bool:
        """Whether the feature predicts better than any that is known before the click."""
        return self.auc >= SUSPICIOUS and self._is_certain

    def is_near(self, model_auc: float) -> bool:
        """Whether a model is hardly better than this feature alone."""
        gain = model_auc - 0.5
        return self._is_certain and self.auc >= 0.55 and self.auc - 0.5 >= NEAR * gain > 0

    @property
    def _is_certain(self) -> bool:
        return self.auc - CERTAIN * self.error > 0.5


def rows_to_check(num_features: int) -> int:
    """Rows of a sample: SAMPLE_ROWS, or fewer where there are many features."""
    return min(SAMPLE_ROWS, max(FEWEST_ROWS, SAMPLE_CELLS // max(1, num_features)))


def judged_features(features: Sequence[Feature], ids: Sequence[str]) -> list[str]:
    """Names of the features that can be outcomes: not users, items (`ids`), nor histories."""
    return [one.name for one in features if one.column not in ids and one.kind != "sequence"]


def single_features(
    batch: Batch, features: Sequence[Feature], names: Sequence[str], dense: Sequence[str] = ()
) -> list[SingleFeature]:
    """AUC of each named feature alone on the rows of a batch, the highest first.

    features: all that the batch has, in order. dense: the name of each value of the field `dense`.
    None where labels are not 0 and 1, or all rows have the same.
    """
    assert batch.labels is not None
    labels = batch.labels.view(batch.size, -1)[:, 0].cpu().numpy()
    ranked = labels[~_learns(labels)]
    if not _has_both_labels(labels):
        return []
    positives = float(ranked.sum())
    negatives = len(ranked) - positives
    error = sqrt((positives + negatives + 1) / (12 * positives * negatives))
    best: dict[str, float] = {}
    for name, rows, codes in _codes(batch, features, dense):
        if name in names:
            best[name] = max(auc_alone(rows, codes, labels), best.get(name, 0.0))
    features_alone = [SingleFeature(name, auc, error) for name, auc in best.items()]
    return sorted(features_alone, key=lambda feature: -feature.auc)


def auc_alone(rows: np.ndarray, codes: np.ndarray, labels: np.ndarray) -> float:
    """AUC of the share of clicks of rows with the same values; .5 where values mean nothing.

    rows, codes: row numbers and values, one of each for every value. labels: 0 or 1 of each row.

    >>> import numpy as np
    >>> codes = np.arange(100) % 2
    >>> auc_alone(np.arange(100), codes, codes.astype(np.float32))
    1.0
    """
    if not _has_both_labels(labels):
        return 0.5
    learns = _learns(labels)
    scores = _shares(rows, codes, labels, learns)[~learns]
    everyone = torch.zeros(len(scores), dtype=torch.int64)
    pairs, positives, negatives = pair_counts(
        everyone, torch.from_numpy(scores), torch.from_numpy(labels[~learns])
    )
    return float(pairs / (positives.double() * negatives))


def _learns(labels: np.ndarray) -> np.ndarray:
    """The rows that shares are learned from, bool [rows]; the others are ranked."""
    return hash64(np.arange(len(labels))) % np.uint64(2) == 0  # as files may alternate


def _has_both_labels(labels: np.ndarray) -> bool:
    """Whether both halves have clicks and others, and nothing else."""
    learns = _learns(labels)
    halves = (labels[learns], labels[~learns])
    return all(set(np.unique(half).tolist()) == {0.0, 1.0} for half in halves)


def _codes(
    batch: Batch, features: Sequence[Feature], dense: Sequence[str]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, row numbers and values of each feature as whole numbers; lists have several a row."""
    sparse = [one.name for one in features if one.is_sparse]
    packed = [one.name for one in features if not one.is_sparse for _ in range(one.width)]
    if all(name in batch.ids for name in sparse):
        for name in sparse:
            yield name, *_entries(batch.ids[name])
    else:  # ids of all features are in one field
        slots = batch.ids["slots"]
        for number, name in enumerate(sparse):
            yield name, *_entries(_slot(slots, number, len(sparse), batch.size))
    for name, values in batch.dense.items():
        columns = values.reshape(batch.size, -1).cpu().numpy()
        names = (list(dense) or packed) if name == "dense" else [name] * columns.shape[1]
        for field_name, column in zip(names, columns.T):
            yield field_name, np.arange(batch.size), bucketed(column)


def _slot(slots: Tensor | Jagged, number: int, count: int, size: int) -> Tensor | Jagged:
    """The ids of one feature of those that lie in one field."""
    if isinstance(slots, Tensor):
        return slots[:, number]
    return slots.take(torch.arange(size) * count + number)


def _entries(ids: Tensor | Jagged) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers and ids, one of each for every id."""
    if isinstance(ids, Jagged):
        lengths = ids.lengths.cpu().numpy()
        return np.repeat(np.arange(len(lengths)), lengths), ids.values.cpu().numpy()
    return np.arange(len(ids)), ids.cpu().numpy()


def bucketed(values: np.ndarray) -> np.ndarray:
    """Numbers as buckets of about equal counts; a value that many rows have has its own."""
    limits = np.unique(np.quantile(values, np.arange(1, BUCKETS) / BUCKETS))
    above, at_least = (np.searchsorted(limits, values, side=side) for side in ("left", "right"))
    return above + at_least


def _shares(
    rows: np.ndarray, codes: np.ndarray, labels: np.ndarray, learns: np.ndarray
) -> np.ndarray:
    """For each row, the share of clicks that learning rows with its values have."""
    values, places = np.unique(codes, return_inverse=True)
    prior, learned = labels[learns].mean(), learns[rows]
    clicks = np.bincount(places[learned], labels[rows[learned]], minlength=len(values))
    counts = np.bincount(places[learned], minlength=len(values))
    shares = (clicks + PRIOR * prior) / (counts + PRIOR)
    values_per_row = np.bincount(rows, minlength=len(labels))
    sums = np.bincount(rows, shares[places], minlength=len(labels))
    return np.where(values_per_row > 0, sums / np.maximum(values_per_row, 1), prior)


class LeakageCheck:
    """The check of a run: on a sample of its rows to validate on, by one process.

    reader: of these rows. features: all that its batches have. ids: columns of users and items.
    """

    def __init__(self, reader: ClickReader, features: Sequence[Feature], ids: Sequence[str] = ()):
        self.reader, self.features, self.ids = reader, features, ids
        self.results: list[SingleFeature] = []
        self.rows = 0

    def run(self) -> list[str]:
        """Try each feature alone; a warning for each that is suspicious whatever the model does."""
        batch = self.reader.sample(rows_to_check(len(self.features)))
        names = judged_features(self.features, self.ids)
        self.rows = batch.size
        self.results = single_features(batch, self.features, names, self.reader.layout.dense)
        return [
            f"{self._alone(feature)}: if it is known only after what is predicted, the metrics "
            f"mean nothing; {REMEDY}"
            for feature in self.results
            if feature.is_suspicious
        ]

    def compare(self, model_auc: float) -> list[str]:
        """A warning for each other feature that is alone about as good as the model."""
        return [
            f"{self._alone(feature)}, and the model {model_auc:.4f}: look whether it is known "
            f"before what is predicted; if not, {REMEDY}"
            for feature in self.results
            if feature.is_near(model_auc) and not feature.is_suspicious
        ]

    def figures(self, model_auc: float | None) -> dict[str, dict[str, Any]]:
        """AUC of the best single features, and whether a warning names them, for result.json."""
        return {
            feature.name: {
                "auc": feature.auc,
                "warned": feature.is_suspicious
                or (model_auc is not None and feature.is_near(model_auc)),
            }
            for feature in self.results[:MOST_SHOWN]
        }

    def _alone(self, feature: SingleFeature) -> str:
        return (
            f"the feature {feature.name} alone has AUC {feature.auc:.4f} "
            f"on {self.rows:,} validation rows"
        )
