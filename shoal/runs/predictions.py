"""Predictions of click models: raw rows in, probabilities out.

A run, an artifact and the service predict alike: the same encoder (data/clicks/encoder.py), and
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

from shoal.data.batch import Batch
from shoal.data.clicks.encoder import FeatureEncoder, LogEncoder
from shoal.data.sources.frames import to_polars
from shoal.runs.explain import Explanation, of_features
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
        """The same of a frame, without a word about what is not known."""
        starts = range(0, len(frame), TILE_ROWS)
        parts = [self.of(self.encoder.batch(frame[a : a + TILE_ROWS])) for a in starts]
        return torch.cat(parts).numpy()

    def warn_unknown(self, frame: Any) -> None:
        """Log how many rows have users, items and values that the model does not know."""
        if isinstance(self.encoder, FeatureEncoder):
            for name, count in self.encoder.unknown(frame).items():
                log.warning(
                    "%d of %d rows have an unknown %s: the other columns decide",
                    *(count, len(frame), name),
                )

    def explain(self, row: Mapping[str, Any]) -> Explanation:
        """What each feature of a row adds to the log odds of a click."""
        found = of_features(*self.encoder.beside_nothing(row), self.logits)
        shares = zip(found.what, found.shares.tolist())
        return Explanation(shares, found.rest, found.rest_is, found.of, found.error)

    def of(self, batch: Batch) -> Tensor:
        """The same of samples that are encoded."""
        with torch.inference_mode():
            return predicted(self.logits(batch), self.losses)
