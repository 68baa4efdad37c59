"""Readers: training samples as batches.

The order of samples is a pure function of (seed, epoch). Global batch k is the same whatever the
number of ranks; each rank takes its slice. So the cursor of a run is a global sample index, and a
change of world size changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from shoal.config.schema import NegativesSection
from shoal.data.batch import Batch, Jagged
from shoal.data.dataset import Dataset
from shoal.data.feature_table import FeatureTable
from shoal.data.prefetch import ahead
from shoal.data.random import Shuffle, Unshuffled
from shoal.data.sampler import NegativeSampler, SeenPairs

T = TypeVar("T")


class Reader:
    """Batches of one epoch, sliced over ranks. Subclasses say what a sample is."""

    num_samples: int
    chunk_samples = 1 << 16  # about so many samples are made at once
    prefetch = False  # a thread makes the next ones during the steps of these
    balance = False  # whether ranks' slices of a batch cost about the same
    batch_tokens: int | None = None  # most items of a global batch; None: it has batch_size samples
    _shuffled: tuple[int, Shuffle] | None = None  # the epoch whose order was made last

    def __init__(self, batch_size: int, seed: int, shuffle: bool = True):
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle

    @property
    def num_batches(self) -> int | None:
        """Global batches of an epoch; the last one may be smaller. None: known only at its end."""
        return -(-self.num_samples // self.batch_size)

    def batches(
        self, epoch: int, rank: int = 0, size: int = 1, start: int = 0, skip: int = 0
    ) -> Iterator[Batch]:
        """This rank's slices of the global batches start, start + 1, ... of an epoch.

        skip: samples before the first batch, where others were given in batches of another size.
        """
        order, cuts, step = self.order(epoch), self.cuts(epoch), self.global_size(size)
        # Several batches are made at once: many small numpy calls would cost more than the work.
        together = max(1, self.chunk_samples * size // step)
        last = -(-(self.num_samples - skip) // step) if cuts is None else len(cuts) - 1
        chunks = range(start, last, together)

        def make(chunk: int) -> list[Batch]:
            slices = []  # of each batch: its first place, how many there are, the first of them
            for number in range(chunk, min(chunk + together, last)):
                if cuts is None:
                    begin = number * step + skip
                    end = min(begin + step, self.num_samples)
                else:
                    begin, end = cuts[number : number + 2].tolist()
                if self.balance:
                    first, stop = self.cut_by_cost(order[begin:end], rank, size)
                else:
                    first, stop = self.cut(end - begin, rank, size)
                slices.append((begin + first, stop - first, first))
            if size == 1:  # they follow each other
                begin, count, _ = slices[-1]
                samples = order[slices[0][0] : begin + count]
            else:
                places = [np.arange(begin, begin + count) for begin, count, _ in slices]
                samples = order[np.concatenate(places)]
            joint_batch, stop, batches = self.make(samples, epoch), 0, []
            for _, count, first in slices:
                batches.append(self.finish(joint_batch.rows(stop, stop + count, first)))
                stop += count
            return batches

        if self.prefetch:
            batch_lists = ahead(make, chunks, 1)
        else:
            batch_lists = map(make, chunks)
        for batches in batch_lists:
            yield from batches

    def global_size(self, size: int) -> int:
        """Samples of a global batch of `size` ranks."""
        return self.batch_size

    def cut(self, count: int, rank: int, size: int) -> tuple[int, int]:
        """This rank's part of a global batch of `count` samples."""
        return count * rank // size, count * (rank + 1) // size

    def cut_by_cost(self, samples: np.ndarray, rank: int, size: int) -> tuple[int, int]:
        """This rank's part of a global batch, which costs about as much as those of others."""
        raise NotImplementedError  # where samples differ in their cost

    def cuts(self, epoch: int) -> np.ndarray | None:
        """Where global batches begin in the order of an epoch, and where the last one ends.

        None: every batch_size samples.
        """
        return None

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
    stored, sizes = dataset.seen(), (dataset.num_users, dataset.num_items)
    if stored is not None:
        return SeenPairs.sorted(*stored, *sizes)
    return SeenPairs(dataset.user_ids("train"), dataset.item_ids("train"), *sizes)


def one_ahead(batches: Iterable[T]) -> Iterator[tuple[T, T | None]]:
    """Each batch with the one after it, so that the one after may be prepared."""
    before = None
    for batch in batches:
        if before is not None:
            yield before, batch
        before = batch
    if before is not None:
        yield before, None
