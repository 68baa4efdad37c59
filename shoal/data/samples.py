"""Readers whose samples are neither single interactions nor windows: prefixes, whole users, and
pairs drawn user by user."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.config.schema import NegativesSection
from shoal.data.batch import Batch, Jagged
from shoal.data.dataset import Dataset
from shoal.data.feature_table import FeatureTable
from shoal.data.history import WindowIndex
from shoal.data.raw_columns import gather
from shoal.data.reader import Interactions, Reader, seen_in_training
from shoal.data.sampler import distinct
from shoal.data.windows import Windows


class Prefixes(Windows):
    """A sample is what came before one item, and that item: for models that say one thing of a
    history, not one at each of its positions.

    items    a b c d            (max_len 2)
    samples  history  a         target  b
             history  a b       target  c
             history  b c       target  d
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # a first item has nothing before it
        self.windows = WindowIndex(np.maximum(np.diff(self.histories.offsets) - 1, 0))
        self.num_samples = len(self.windows)

    def place(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        users, nth = self.windows.find(samples)
        return users, self.histories.offsets[users] + nth + 2

    def make(self, samples: np.ndarray, epoch: int) -> Batch:
        users, stops = self.place(samples)
        history, _ = self.histories.gather(users, stops)
        ids: dict[str, Tensor | Jagged] = {
            self.user_field: torch.from_numpy(users),
            "history": torch.from_numpy(history),
            "target": torch.from_numpy(self.histories.items[stops - 1].astype(np.int64)),
        }
        if self.negatives is not None:
            drawn = self.negatives.draw(users, samples, epoch, self.num_negatives)
            ids["neg_item"] = torch.from_numpy(drawn)
        if self.histories.times is not None:
            ids["history_time"] = torch.from_numpy(self.histories.window_times(users, stops))
        return Batch(len(samples), ids)


class Users(Reader):
    """A sample is one user with all training items, each once: ids `taken`, a Jagged of b lists."""

    def __init__(self, dataset: Dataset, batch_size: int, seed: int, shuffle: bool = True):
        super().__init__(batch_size, seed, shuffle)
        self.user_field = dataset.user_field
        users, items = dataset.user_ids("train"), dataset.item_ids("train")
        pairs = distinct(np.asarray(users, dtype=np.int64) * dataset.num_items + items)
        self.items = pairs % dataset.num_items
        counts = np.bincount(pairs // dataset.num_items, minlength=dataset.num_users)
        self.offsets = np.concatenate([[0], np.cumsum(counts)])
        self.users = np.flatnonzero(counts)
        self.num_samples = len(self.users)

    def make(self, samples: np.ndarray, epoch: int) -> Batch:
        users = self.users[samples]
        items, offsets = gather(self.items, self.offsets, users, 0)
        taken = Jagged(torch.from_numpy(items), torch.from_numpy(offsets))
        return Batch(len(samples), {self.user_field: torch.from_numpy(users), "taken": taken})


class ByUser(Interactions):
    """A sample is a random user with one of the user's items; as many as there are interactions."""

    def __init__(
        self,
        dataset: Dataset,
        negatives: NegativesSection | None,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
        table: FeatureTable | None = None,
    ):
        super().__init__(dataset, negatives, batch_size, seed, shuffle, table)
        if self.labels is not None:
            raise ValueError(
                "train.positives=by_user draws users and items, not rows with their labels; choose "
                "train.positives=each, or train with negatives"
            )
        self.seen = seen_in_training(dataset) if self.negatives is None else self.negatives.seen

    def pairs(self, samples: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        return self.seen.draw(samples, self.seed, epoch)
