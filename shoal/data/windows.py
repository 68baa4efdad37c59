"""Readers whose samples are windows of histories.

Histories differ in length, so batches may be cut by their items (`cut_by_tokens`), and slices of a
batch by what they cost (`balance`): cuts.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from shoal.config.schema import NegativesSection
from shoal.data.batch import Batch, Jagged
from shoal.data.cuts import cost, even_cuts, num_batches_of
from shoal.data.dataset import Dataset
from shoal.data.history import Histories
from shoal.data.random import Shuffle, Unshuffled, permutation
from shoal.data.reader import Reader, draws_per_sample, make_sampler


class LengthReader(Reader):
    """What readers of histories share: a sample has a length."""

    histories: Histories
    _num_batches: int | None = None  # where they are cut by their items
    _cut: tuple[int, np.ndarray] | None = None  # the epoch that was cut last, and where

    def lengths(self, samples: np.ndarray) -> np.ndarray:
        """Items in the histories of samples, or the most there may be: int64 [n]."""
        raise NotImplementedError  # every such reader writes its own

    def cut_by_cost(self, samples: np.ndarray, rank: int, size: int) -> tuple[int, int]:
        cuts = even_cuts(cost(self.lengths(samples), self.histories.max_len), size)
        return int(cuts[rank]), int(cuts[rank + 1])

    def cut_by_tokens(self, most: int) -> None:
        """Limit every following global batch to `most` items; `batch_size` becomes its mean size.

        Every epoch has as many batches, so that schedules of the learning rate know their steps.
        """
        lengths = self.lengths(np.arange(self.num_samples))
        self._num_batches = num_batches_of(int(lengths.sum()), int(lengths.max()), most)
        self.batch_tokens, self.batch_size = most, -(-self.num_samples // self._num_batches)

    @property
    def num_batches(self) -> int | None:
        return super().num_batches if self._num_batches is None else self._num_batches

    def cuts(self, epoch: int) -> np.ndarray | None:
        if self._num_batches is None:
            return None
        if self._cut is None or self._cut[0] != epoch:
            lengths = self.lengths(self.order(epoch)[0 : self.num_samples])
            self._cut = epoch, even_cuts(lengths, self._num_batches)
        return self._cut[1]


class Windows(LengthReader):
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
        self._sorted: tuple[int, np.ndarray, np.ndarray] | None = None  # epoch, order, cuts
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
        """The users of samples [n], and the place of the item behind each last target [n]."""
        users, nth = self.windows.find(samples)
        return users, self.histories.offsets[users + 1] - nth * self.histories.max_len

    def lengths(self, samples: np.ndarray) -> np.ndarray:
        """Items in the histories of samples: [n]."""
        users, stops = self.place(samples)
        return np.minimum(stops - 1 - self.histories.offsets[users], self.histories.max_len)

    def order(self, epoch: int) -> Shuffle | Unshuffled | np.ndarray:
        return self._bucketed(epoch)[0] if self.bucket else super().order(epoch)

    def cuts(self, epoch: int) -> np.ndarray | None:
        if self.bucket and self.batch_tokens is not None:
            return self._bucketed(epoch)[1]
        return super().cuts(epoch)

    def _bucketed(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The order of an epoch in which batches have samples of like length, and their cuts."""
        if self._sorted is not None and self._sorted[0] == epoch:
            return self._sorted[1:]
        order = super().order(epoch)[0 : self.num_samples]
        span = 50 * self.batch_size  # samples that are sorted by length together
        spans = [order[start : start + span] for start in range(0, len(order), span)]
        order = np.concatenate([one[np.argsort(self.lengths(one), kind="stable")] for one in spans])
        if self._num_batches is None:
            whole = len(order) // self.batch_size
            cuts = np.arange(0, len(order) + self.batch_size, self.batch_size).clip(max=len(order))
        else:
            whole = self._num_batches
            cuts = even_cuts(self.lengths(order), whole)
        # Batches of all lengths in turn; the last one, which may be smaller, stays the last.
        turns = permutation(whole, self.seed ^ 1, epoch) if self.shuffle else np.arange(whole)
        turns = np.concatenate([turns, np.arange(whole, len(cuts) - 1)])
        batches = [order[cuts[turn] : cuts[turn + 1]] for turn in turns]
        ends = np.cumsum([len(one) for one in batches])
        self._sorted = epoch, np.concatenate(batches), np.concatenate([[0], ends])
        return self._sorted[1:]

    def batches(
        self, epoch: int, rank: int = 0, size: int = 1, start: int = 0, skip: int = 0
    ) -> Iterator[Batch]:
        batches = super().batches(epoch, rank, size, start, skip)
        if not self.bucket:
            yield from batches
            return
        order, cuts = self._bucketed(epoch)
        for number, batch in enumerate(batches, start):
            begin, end = cuts[number : number + 2] + skip
            yield _trimmed(batch, int(self.lengths(order[begin:end]).max()))

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


def _trimmed(batch: Batch, length: int) -> Batch:
    """The batch with histories of so many places."""
    ids = dict(batch.ids)
    each_position = batch.tensor("target").dim() > 1
    for name in ("history", "target", "neg_item") if each_position else ("history",):
        if name in ids:
            ids[name] = batch.tensor(name)[:, :length].contiguous()
    if "history_time" in ids:
        ids["history_time"] = batch.tensor("history_time")[:, : length + 1].contiguous()
    return replace(batch, ids=ids)
