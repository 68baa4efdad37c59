"""Predictions of click models: raw rows in, probabilities out.

A run, an artifact and the service predict alike: the same encoder (clicks/encoder.py), and
tiles of rows as an evaluation cuts them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.clicks.encoder import FeatureEncoder, LogEncoder
from shoal.data.batch import Batch
from shoal.data.sources.frames import to_polars
from shoal.recommender.explanation import Explanation, of_features
from shoal.training.evaluation import predicted
from shoal.training.evaluation.clicks import TILE_ROWS

log = logging.getLogger("shoal")


@dataclass(frozen=True)
class Predictor:
    """A click model with what encodes its rows. losses: those of its labels."""

    encoder: FeatureEncoder | LogEncoder
    logits: Callable[[Batch], Tensor]
    losses: Sequence[str] = ()

    def predict(self, rows: Any) -> np.ndarray:
        """float64 [n], or [n, labels], of a frame, a dict of columns or an iterator of dicts."""
        frame = to_polars(rows, "the rows")
        self.warn_unknown(frame)
        return self.chances(frame)

    def chances(self, frame: Any) -> np.ndarray:
        """Probabilities for a frame, float64 [n] or [n, labels]; unknown ids are not logged."""
        starts = range(0, len(frame), TILE_ROWS)
        parts = [self.predict_batch(self.encoder.batch(frame[a : a + TILE_ROWS])) for a in starts]
        return torch.cat(parts).numpy()

    def warn_unknown(self, frame: Any) -> None:
        """Log how many rows have users, items and values that the model does not know."""
        if isinstance(self.encoder, FeatureEncoder):
            for name, count in self.encoder.unknown(frame).items():
                log.warning(
                    "%d of %d rows have an unknown %s: the other columns decide",
                    count,
                    len(frame),
                    name,
                )

    def explain(self, row: Mapping[str, Any]) -> Explanation:
        """Shares of a row's features in the log odds of a click."""
        pair, features = self.encoder.with_baseline_row(row)
        breakdown = of_features(pair, features, self.logits)
        return Explanation(
            zip(breakdown.what, breakdown.shares.tolist()),
            rest=breakdown.rest,
            rest_is=breakdown.rest_is,
            of=breakdown.of,
            error=breakdown.error,
        )

    def predict_batch(self, batch: Batch) -> Tensor:
        """Probabilities for samples that are encoded: [n] or [n, labels]."""
        with torch.inference_mode():
            return predicted(self.logits(batch), self.losses)
