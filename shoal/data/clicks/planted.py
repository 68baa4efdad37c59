"""Planted clicks: a generated log with a known logistic model, so the best possible AUC is known.

    log odds = -1.0 + strength * (  sum over slots of weight(slot, id)
                                  + sum over pairs of slots of factor(id) * factor(other id)
                                  + sum over dense values of weight * value  )

each of the three scaled to a deviation of its own. Ids follow a power law within each slot, and an
id belongs to one slot alone: 1 + slot * ids_per_slot + number; 0 is nobody's. Everything is a pure
function of (seed, what it is), so that any part of the log can be made alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.config.schema import PlantedClicksSection
from shoal.data.clicks.samples import Layout, Samples
from shoal.data.dataset import Phase
from shoal.data.random import hash64, uniform

DEVIATION = {"slots": 1.0, "pairs": 0.7, "dense": 0.7}
# what a number is drawn for
IDS, LABELS, DENSE, WEIGHTS, FACTORS, DENSE_WEIGHTS = range(6)


@dataclass(frozen=True)
class PlantedClicks:
    """One phase: its samples, and the true probability of a click of each, float64 [n]."""

    samples: Samples
    probabilities: np.ndarray

    def best_auc(self) -> float:
        """The AUC of the true probabilities on these samples: no model is expected above it."""
        clicked = self.samples.labels == 1
        _, place, counts = np.unique(self.probabilities, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # from 1, equal ones share theirs
        positives, negatives = int(clicked.sum()), int((~clicked).sum())
        above = ranks[clicked].sum() - positives * (positives + 1) / 2
        return float(above / (positives * negatives))


def layout(section: PlantedClicksSection) -> Layout:
    """The columns: slots 1, 2, ... and the dense values."""
    names = tuple(str(k + 1) for k in range(section.slots))
    rows = 1 + section.slots * section.ids_per_slot
    return Layout(names, ("dense_feature",) * section.dense, "click", rows)


def planted_clicks(section: PlantedClicksSection, phase: Phase) -> PlantedClicks:
    """The samples of one phase. valid and test have a tenth of the training samples each."""
    tenth = max(1, section.samples // 10)
    first = {"train": 0, "valid": section.samples, "test": section.samples + tenth}[phase]
    index = first + np.arange(section.samples if phase == "train" else tenth)
    numbers = _ids(section, index)  # [n, slots], from 0 within each slot
    dense = _normal(hash64(section.seed, DENSE, index[:, None], np.arange(section.dense)))
    odds = -1.0 + section.strength * _score(section, numbers, dense)
    probabilities = 1 / (1 + np.exp(-odds))
    labels = uniform(hash64(section.seed, LABELS, index)) < probabilities
    ids = 1 + np.arange(section.slots) * section.ids_per_slot + numbers
    samples = Samples(
        section.slots, labels.astype(np.float32), dense.astype(np.float32), ids.astype(np.int64)
    )
    return PlantedClicks(samples, probabilities)


def _ids(section: PlantedClicksSection, index: np.ndarray) -> np.ndarray:
    weights = np.arange(1, section.ids_per_slot + 1) ** -section.popularity
    limits = np.cumsum(weights) / weights.sum()
    drawn = uniform(hash64(section.seed, IDS, index[:, None], np.arange(section.slots)))
    return np.minimum(np.searchsorted(limits, drawn, side="right"), section.ids_per_slot - 1)


def _score(section: PlantedClicksSection, numbers: np.ndarray, dense: np.ndarray) -> np.ndarray:
    seed, slots = section.seed, np.arange(section.slots)
    weights = _normal(hash64(seed, WEIGHTS, slots, numbers))
    score = DEVIATION["slots"] * weights.sum(axis=1) / np.sqrt(section.slots)
    pairs = section.slots // 2
    if pairs:
        factors = _normal(hash64(seed, FACTORS, slots, numbers))
        products = factors[:, 0 : 2 * pairs : 2] * factors[:, 1 : 2 * pairs : 2]
        score += DEVIATION["pairs"] * products.sum(axis=1) / np.sqrt(pairs)
    if section.dense:
        shares = _normal(hash64(seed, DENSE_WEIGHTS, np.arange(section.dense)))
        score += DEVIATION["dense"] * (dense * shares).sum(axis=1) / np.sqrt(section.dense)
    return score


def _normal(bits: np.ndarray) -> np.ndarray:
    """Nearly normal numbers of deviation 1: sums of four uniform ones of 16 bits each."""
    words = np.ascontiguousarray(bits).view(np.uint16).reshape(*bits.shape, 4)
    return (words.sum(axis=-1, dtype=np.int64) - 2 * 65_535) / (65_536 / np.sqrt(3.0))
