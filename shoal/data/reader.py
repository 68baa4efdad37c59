"""Readers: training samples as batches.

The order of samples is a pure function of (seed, epoch). Global batch k is the same whatever the
number of ranks; each rank takes its slice. So the cursor of a run is a global sample index, and a
change of world size changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from shoal.config.schema import NegativesSection
from shoal.data.batch import Batch, Jagged
from shoal.data.dataset import Dataset
from shoal.data.feature_table import FeatureTable
from shoal.data.history import Histories
from shoal.data.prefetch import ahead
from shoal.data.random import Shuffle, Unshuffled, permutation
from shoal.data.sampler import NegativeSampler, SeenPairs


class Reader:
    """Batches of one epoch, sliced over ranks. Subclasses say what a sample is."""

    num_samples: int
    chunk_samples = 1 << 16  # about so many samples are made at once
    prefetch = False  # a thread makes the next ones during the steps of these
    _shuffled: tuple[int, Shuffle] | None = None  # the epoch whose order was made last

    def __init__(self, batch_size: int, seed: int, shuffle: bool = True):
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle

    @property
    def num_batches(self) -> int | None:
        """Global batches per epoch; the last one may be smaller. None: known only at the end."""
        return -(-self.num_samples // self.batch_size)

    def batches(
        self, epoch: int, rank: int = 0, size: int = 1, start: int = 0, skip: int = 0
    ) -> Iterator[Batch]:
        """This rank's slices of the global batches start, start + 1, ... of an epoch.

        skip: samples before the first batch, where others were given in batches of another size.
        """
        order, step = self.order(epoch), self.global_size(size)
        # Several batches are made at once: many small numpy calls would cost more than the work.
        together = max(1, self.chunk_samples * size // step)
        last = -(-(self.num_samples - skip) // step)
        chunks = range(start, last, together)

        def make(chunk: int) -> list[Batch]:
            slices = []  # of each batch: its first place, how many there are, the first of them
            for number in range(chunk, min(chunk + together, last)):
                begin = number * step + skip
                first, stop = self.cut(min(step, self.num_samples - begin), rank, size)
                slices.append((begin + first, stop - first, first))
            if size == 1:  # they follow each other
                begin, count, _ = slices[-1]
                samples = order[slices[0][0] : begin + count]
            else:
                places = [np.arange(begin, begin + count) for begin, count, _ in slices]
                samples = order[np.concatenate(places)]
            made, stop, batches = self.make(samples, epoch), 0, []
            for _, count, first in slices:
                batches.append(self.finish(made.rows(stop, stop + count, first)))
                stop += count
            return batches

        if self.prefetch:
            made = ahead(make, chunks, 1)
        else:
            made = map(make, chunks)
        for batches in made:
            yield from batches

    def global_size(self, size: int) -> int:
        """Samples of a global batch of `size` ranks."""
        return self.batch_size

    def cut(self, count: int, rank: int, size: int) -> tuple[int, int]:
        """This rank's part of a global batch of `count` samples."""
        return count * rank // size, count * (rank + 1) // size

    def order(self, epoch: int) -> Shuffle | Unshuffled | np.ndarray:
        """Sample numbers in the order of an epoch, by slices."""
        if not self.shuffle:
            return Unshuffled()
        if self._shuffled is None or self._shuffled[0] != epoch:  # one may be read in pieces
            self._shuffled = None  # so that the next one has its memory, which is in the cache
            self._shuffled = epoch, Shuffle(self.num_samples, self.seed, epoch)
        return self._shuffled[1]

    def make(self, samples: np.ndarray, epoch: int) -> Batch:
        """The batch of the given sample numbers."""
        raise NotImplementedError  # every reader writes its own

    def finish(self, batch: Batch) -> Batch:
        """One rank's slice of one batch, with what can be said of it alone."""
        return batch

    def empty(self) -> Batch:
        """A batch without samples, where num_batches is None and a rank runs out before others."""
        raise NotImplementedError  # readers that know their number of batches need none


class Interactions(Reader):
    """A sample is one training interaction, with negatives where they are asked for."""

    def __init__(
        self,
        dataset: Dataset,
        negatives: NegativesSection | None,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
        table: FeatureTable | None = None,
    ):
        super().__init__(batch_size, seed, shuffle)
        self.table = table  # features of users and items, for models that read them
        self.user_field, self.item_field = dataset.user_field, dataset.item_field
        self.users = np.ascontiguousarray(dataset.user_ids("train"))
        self.items = np.ascontiguousarray(dataset.item_ids("train"))
        self.num_samples = len(self.users)
        self.labels = None
        if negatives is None and dataset.label_field is not None:
            labels = dataset.flat(dataset.label_field)[dataset.splits["train"]]
            self.labels = np.asarray(labels, dtype=np.float32)
        self.negatives = make_sampler(dataset, negatives, seed)
        self.num_negatives = draws_per_sample(negatives)

    def pairs(self, samples: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Users and items of samples, each int64 [n]."""
        users = self.users.take(samples).astype(np.int64, copy=False)  # on disk ids are shorter
        return users, self.items.take(samples).astype(np.int64, copy=False)

    def make(self, samples: np.ndarray, epoch: int) -> Batch:
        users, items = self.pairs(samples, epoch)
        ids: dict[str, Tensor | Jagged] = {
            self.user_field: torch.from_numpy(users),
            self.item_field: torch.from_numpy(items),
        }
        if self.negatives is not None:
            drawn = self.negatives.draw(users, samples, epoch, self.num_negatives)
            ids["neg_item"] = torch.from_numpy(drawn)
        labels = None if self.labels is None else torch.from_numpy(self.labels[samples])
        batch = Batch(len(samples), ids, labels=labels)
        return batch if self.table is None else self.table.onto(batch)


class Windows(Reader):
    """A sample is a window of one user's training sequence; each position predicts the next item.

    With `bucket` samples of like length share a batch, and a batch is as long as its longest.

    items    a b c d e          (max_len 3)
    windows  history  b c d     target  c d e
             history  a         target  b
    """

    def __init__(
        self,
        dataset: Dataset,
        histories: Histories,
        negatives: NegativesSection | None,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
        bucket: bool = False,
    ):
        super().__init__(batch_size, seed, shuffle)
        self.bucket = bucket
        self.user_field = dataset.user_field
        self.histories = histories
        self.windows = histories.windows()
        self.chunk_samples //= histories.max_len
        self.num_samples = len(self.windows)
        if self.num_samples == 0:
            raise ValueError(
                f"data set {dataset.name!r} has no user with two training interactions, so a "
                "sequential model has nothing to learn from; relax the filters or the split"
            )
        self.negatives = make_sampler(dataset, negatives, seed)
        self.num_negatives = draws_per_sample(negatives)

    def place(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of samples: their users [n], and where the item after their last target stands [n]."""
        users, nth = self.windows.find(samples)
        return users, self.histories.offsets[users + 1] - nth * self.histories.max_len

    def lengths(self, samples: np.ndarray) -> np.ndarray:
        """Items in the histories of samples: [n]."""
        users, stops = self.place(samples)
        return np.minimum(stops - 1 - self.histories.offsets[users], self.histories.max_len)

    def order(self, epoch: int) -> Shuffle | Unshuffled | np.ndarray:
        if not self.bucket:
            return super().order(epoch)
        order = super().order(epoch)[0 : self.num_samples]
        span = 50 * self.batch_size  # samples that are sorted by length together
        spans = [order[start : start + span] for start in range(0, len(order), span)]
        order = np.concatenate([one[np.argsort(self.lengths(one), kind="stable")] for one in spans])
        # Batches of all lengths in turn; the last one, which may be smaller, stays the last.
        whole = len(order) // self.batch_size
        turns = permutation(whole, self.seed ^ 1, epoch) if self.shuffle else np.arange(whole)
        batches = order[: whole * self.batch_size].reshape(whole, -1)[turns]
        return np.concatenate([batches.reshape(-1), order[whole * self.batch_size :]])

    def batches(
        self, epoch: int, rank: int = 0, size: int = 1, start: int = 0, skip: int = 0
    ) -> Iterator[Batch]:
        made = super().batches(epoch, rank, size, start, skip)
        if not self.bucket:
            yield from made
            return
        order = self.order(epoch)
        for number, batch in enumerate(made, start):
            begin = number * self.batch_size + skip
            together = order[begin : begin + self.batch_size]
            yield _cut(batch, int(self.lengths(together).max()))

    def make(self, samples: np.ndarray, epoch: int) -> Batch:
        users, stops = self.place(samples)
        history, target = self.histories.gather(users, stops)
        ids: dict[str, Tensor | Jagged] = {
            self.user_field: torch.from_numpy(users),
            "history": torch.from_numpy(history),
            "target": torch.from_numpy(target),
        }
        if self.negatives is not None:
            width = self.histories.max_len
            # One draw per position, numbered by (window, position).
            index = (samples[:, None] * width + np.arange(width)).reshape(-1)
            drawn = self.negatives.draw(np.repeat(users, width), index, epoch, self.num_negatives)
            shape = len(samples), width, self.num_negatives
            ids["neg_item"] = torch.from_numpy(drawn).view(shape)
        if self.histories.times is not None:
            ids["history_time"] = torch.from_numpy(self.histories.window_times(users, stops))
        return Batch(len(samples), ids)


def _cut(batch: Batch, length: int) -> Batch:
    """The batch with histories of so many places."""
    ids = dict(batch.ids)
    each_position = batch.tensor("target").dim() > 1
    for name in ("history", "target", "neg_item") if each_position else ("history",):
        if name in ids:
            ids[name] = batch.tensor(name)[:, :length].contiguous()
    if "history_time" in ids:
        ids["history_time"] = batch.tensor("history_time")[:, : length + 1].contiguous()
    return replace(batch, ids=ids)


def draws_per_sample(negatives: NegativesSection | None) -> int:
    """Draws per sample: dynamic sampling draws `candidates` for each negative it keeps."""
    if negatives is None:
        return 0
    return negatives.num * (negatives.candidates if negatives.dynamic else 1)


def make_sampler(
    dataset: Dataset, negatives: NegativesSection | None, seed: int
) -> NegativeSampler | None:
    """The sampler of training negatives: never an item of the user's training interactions."""
    if negatives is None:
        return None
    return NegativeSampler(
        seen_in_training(dataset),
        dataset.num_items,
        distribution=negatives.distribution,
        alpha=negatives.alpha,
        popularity=np.bincount(dataset.item_ids("train"), minlength=dataset.num_items),
        seed=seed,
    )


def seen_in_training(dataset: Dataset) -> SeenPairs:
    """The pairs of the training part, each once."""
    kept, sizes = dataset.seen(), (dataset.num_users, dataset.num_items)
    if kept is not None:
        return SeenPairs.sorted(*kept, *sizes)
    return SeenPairs(dataset.user_ids("train"), dataset.item_ids("train"), *sizes)
