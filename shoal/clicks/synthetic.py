"""Synthetic clicks: a generated log with a known logistic model, so the best possible AUC is known.

    log odds = -1.0 + strength * (  sum over slots of weight(slot, id)
                                  + sum over pairs of slots of factor(id) * factor(other id)
                                  + sum over dense values of weight * value  )

each of the three scaled to a deviation of its own. A slot that holds a bag of k ids has the sum of
their weights, and of their factors, over the root of k. Ids follow a power law within each slot,
and an id belongs to one slot alone: 1 + ids of the slots before + number; 0 belongs to no slot.
Everything is a pure function of (seed, what it is), so that any part of the log can be made alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoal.clicks.layout import Layout
from shoal.clicks.samples import Samples
from shoal.config.schema import SyntheticClicksSection
from shoal.data.dataset import Split
from shoal.data.random import hash64, uniform

DEVIATION = {"slots": 1.0, "pairs": 0.7, "dense": 0.7}
# what a number is drawn for
IDS, LABELS, DENSE, WEIGHTS, FACTORS, DENSE_WEIGHTS = range(6)


@dataclass(frozen=True)
class SyntheticClicks:
    """One split: its samples, and the true probability of a click of each, float64 [n]."""

    samples: Samples
    probabilities: np.ndarray

    def best_auc(self) -> float:
        """The AUC of the true probabilities on these samples: no model is expected above it."""
        return auc(self.probabilities, self.samples.labels)


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The share of pairs of a click and no click that are in order; equal scores count half.

    nan where there are none.
    """
    clicked = labels == 1
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # from 1, equal ones share theirs
    positives, negatives = int(clicked.sum()), int((~clicked).sum())
    above = ranks[clicked].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives or np.nan))


def slot_rows(section: SyntheticClicksSection) -> list[int]:
    """Distinct ids of every slot."""
    sizes = section.ids_per_slot
    return sizes if isinstance(sizes, list) else [sizes] * section.slots


def bag_sizes(section: SyntheticClicksSection) -> list[int]:
    """Ids that every slot of a sample holds."""
    return section.bags if isinstance(section.bags, list) else [section.bags] * section.slots


def layout(section: SyntheticClicksSection) -> Layout:
    """The columns: slots 1, 2, ... and the dense values."""
    names = tuple(str(k + 1) for k in range(section.slots))
    rows = 1 + sum(slot_rows(section))
    return Layout(names, ("dense_feature",) * section.dense, "click", rows)


def indices(section: SyntheticClicksSection, split: Split) -> range:
    """Numbers of one split's samples. valid and test have a tenth of the training samples each."""
    tenth = max(1, section.samples // 10)
    first = {"train": 0, "valid": section.samples, "test": section.samples + tenth}[split]
    return range(first, first + (section.samples if split == "train" else tenth))


def synthetic_clicks(section: SyntheticClicksSection, split: Split) -> SyntheticClicks:
    """The samples of one split."""
    return synthetic_samples(section, np.asarray(indices(section, split)))


def synthetic_samples(section: SyntheticClicksSection, index: np.ndarray) -> SyntheticClicks:
    """The samples of these numbers: [n]."""
    numbers = synthetic_ids(section, index)
    dense = _normal(hash64(section.seed, DENSE, index[:, None], np.arange(section.dense)))
    odds = -1.0 + section.strength * _score(section, numbers, dense)
    probabilities = 1 / (1 + np.exp(-odds))
    labels = uniform(hash64(section.seed, LABELS, index)) < probabilities
    starts = np.cumsum([0, *slot_rows(section)])[:-1]
    sizes = bag_sizes(section)
    ids = (1 + np.repeat(starts, sizes) + numbers).astype(np.int64)
    offsets = None
    if max(sizes) > 1:  # bags of several ids lie one after the other
        ids = ids.reshape(-1)
        offsets = np.concatenate([[0], np.cumsum(np.tile(sizes, len(index)))])
    samples = Samples(
        num_slots=section.slots,
        labels=labels.astype(np.float32),
        dense=dense.astype(np.float32),
        ids=ids,
        offsets=offsets,
    )
    return SyntheticClicks(samples, probabilities)


def synthetic_ids(
    section: SyntheticClicksSection, index: np.ndarray, slot: int | None = None
) -> np.ndarray:
    """Ids of these samples' bags, or of one slot's, from 0 in each slot: [n, ids of a sample]."""
    bounds = np.cumsum([0, *bag_sizes(section)])
    slots = range(section.slots) if slot is None else range(slot, slot + 1)
    columns = np.arange(bounds[slots.start], bounds[slots.stop])
    drawn = uniform(hash64(section.seed, IDS, index[:, None], columns))
    ids = np.empty(drawn.shape, np.int64)
    for number in slots:
        part = slice(bounds[number] - columns[0], bounds[number + 1] - columns[0])
        rows = slot_rows(section)[number]
        limits = _limits(rows, section.popularity)
        ids[:, part] = np.minimum(np.searchsorted(limits, drawn[:, part], "right"), rows - 1)
    return ids


@lru_cache(maxsize=32)
def _limits(rows: int, popularity: float) -> np.ndarray:
    """The share of draws that fall on ids up to each: [rows]."""
    weights = np.arange(1, rows + 1) ** -popularity
    return np.cumsum(weights) / weights.sum()


def _score(section: SyntheticClicksSection, numbers: np.ndarray, dense: np.ndarray) -> np.ndarray:
    seed, sizes = section.seed, bag_sizes(section)
    slots = np.repeat(np.arange(section.slots), sizes)
    starts, roots = np.cumsum([0, *sizes])[:-1], np.sqrt(sizes)

    def of_bags(stream: int) -> np.ndarray:
        values = _normal(hash64(seed, stream, slots, numbers))
        return np.add.reduceat(values, starts, axis=1) / roots  # [n, slots]

    score = DEVIATION["slots"] * of_bags(WEIGHTS).sum(axis=1) / np.sqrt(section.slots)
    pairs = section.slots // 2
    if pairs:
        factors = of_bags(FACTORS)
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
