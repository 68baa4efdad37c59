"""Masked windows: what a bidirectional model learns from.

    items      a b c d e f g       (max_len 5, stride 2)
    windows    c d e f g           laid from the end, every `stride` items,
               a b c d e           the first one at the beginning of the sequence
                                   (from the start: a-e, c-g, e-g, g)
    masked     c M e x g           M: mask token, x: a random item
    target     . d . f .           the items that were there; 0 elsewhere

What happens at a position is a pure function of (seed, epoch, sample, position): the same for any
batch, any rank and any restart. Every epoch draws new masks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.config.schema import NegativesSection
from shoal.data.batch import Batch, Jagged
from shoal.data.dataset import Dataset
from shoal.data.history import Histories, WindowIndex
from shoal.data.random import below, hash64, uniform, uniform_below
from shoal.data.reader import draws_per_sample, make_sampler
from shoal.data.sampler import log_weights
from shoal.data.windows import LengthReader

_MASKS, _ITEMS, _LAST, _ENDS = range(1, 5)  # streams of random numbers


@dataclass(frozen=True)
class Masking:
    """How windows are laid and masked; a model that wants masked windows has one.

    mask_ratio    probability that an item is hidden and asked for
    random_ratio  share of the hidden ones that show a random item instead of the mask token
    last_ratio    share of the samples in which the last item alone is hidden, as when asked; their
                  windows end earlier by a random part of a stride, so that any item may be last
    copies        samples of each window in an epoch, each with masks of its own
    stride        items between windows; None: a tenth of the window, at least 1
    from_start    windows begin at items 0, stride, 2 stride, ...; the last ones may be short
    hide_last     the last item of a window is always hidden, besides the others
    """

    mask_ratio: float = 0.2
    random_ratio: float = 0.2
    last_ratio: float = 0.0
    copies: int = 1
    stride: int | None = None
    from_start: bool = False
    hide_last: bool = False


class MaskedWindows(LengthReader):
    """A sample is one copy of one window; ids are history [b, l] with masks and target [b, l].

    The mask token is num_items, one past the last item. ids masked is Jagged: which places of the
    flattened history are asked for, so that they are not counted on a GPU.

    With negatives every sample has its own, neg_item [b, k], and dense neg_logq [b, k] and
    target_logq [b, l]: the logarithm of how often an item is drawn, up to a constant.
    """

    def __init__(
        self,
        dataset: Dataset,
        histories: Histories,
        masking: Masking,
        negatives: NegativesSection | None,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
    ):
        super().__init__(batch_size, seed, shuffle)
        self.user_field, self.num_items = dataset.user_field, dataset.num_items
        self.histories, self.masking = histories, masking
        self.stride = masking.stride or max(1, histories.max_len // 10)
        self.windows = Laid(histories.offsets, histories.max_len, self.stride, masking.from_start)
        self.chunk_samples //= histories.max_len
        self.num_samples = len(self.windows) * masking.copies
        if self.num_samples == 0:
            raise ValueError(
                f"data set {dataset.name!r} has no training interactions, so there is nothing to "
                "mask; relax the filters or the split"
            )
        self.negatives = make_sampler(dataset, negatives, seed)
        self.num_negatives = draws_per_sample(negatives)
        self.logq = np.zeros(0, dtype=np.float32)
        if negatives is not None:
            popularity = np.bincount(dataset.item_ids("train"), minlength=dataset.num_items)
            self.logq = log_weights(popularity, negatives.distribution, negatives.alpha)

    def lengths(self, samples: np.ndarray) -> np.ndarray:
        users, starts, stops = self.windows.find(samples // self.masking.copies)
        if self.masking.last_ratio and self.masking.from_start:  # such a one may begin earlier
            starts = np.maximum(stops - self.histories.max_len, self.histories.offsets[users])
        return stops - starts

    def finish(self, batch: Batch) -> Batch:
        is_hidden = batch.tensor("target") > 0
        offsets = F.pad(is_hidden.sum(1).cumsum(0), (1, 0))
        places = is_hidden.view(-1).nonzero().view(-1)
        return replace(batch, ids={**batch.ids, "masked": Jagged(places, offsets)})

    def make(self, samples: np.ndarray, epoch: int) -> Batch:
        users, starts, stops = self.places(samples, epoch)
        items = self.histories.padded(starts, stops - starts)
        history, target = self.mask(items, samples, epoch)
        ids: dict[str, Tensor | Jagged] = {
            self.user_field: torch.from_numpy(users),
            "history": torch.from_numpy(history),
            "target": torch.from_numpy(target),
        }
        dense = {}
        if self.negatives is not None:
            drawn = self.negatives.draw(users, samples, epoch, self.num_negatives)
            ids["neg_item"] = torch.from_numpy(drawn)
            dense["neg_logq"] = torch.from_numpy(self.logq[drawn])
            dense["target_logq"] = torch.from_numpy(self.logq[target])
        return Batch(len(samples), ids, dense)

    def places(self, samples: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the windows of samples lie: users [n], starts [n], stops [n]."""
        users, starts, stops = self.windows.find(samples // self.masking.copies)
        alone = self.hides_last_alone(samples, epoch)
        if not alone.any():
            return users, starts, stops
        # Ends that no other window has: a stride, or in the first window all but its first item.
        begin = self.histories.offsets[users]
        ends = np.where(starts > begin, self.stride, np.maximum(stops - begin - 1, 1))
        stops = stops - alone * uniform_below(hash64(self.seed, _ENDS, epoch, samples), ends)
        starts = np.where(alone, np.maximum(stops - self.histories.max_len, begin), starts)
        return users, starts, stops

    def hides_last_alone(self, samples: np.ndarray, epoch: int) -> np.ndarray:
        """Which samples hide their last item and no other: bool [n]."""
        if not self.masking.last_ratio:
            return np.zeros(len(samples), dtype=bool)
        return uniform(hash64(self.seed, _LAST, epoch, samples)) < self.masking.last_ratio

    def mask(
        self, items: np.ndarray, samples: np.ndarray, epoch: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """History with masks and targets of windows [n, max_len] of items, 0 pads."""
        masking, width = self.masking, self.histories.max_len
        entries = samples[:, None] * width + np.arange(width)
        draw = hash64(self.seed, _MASKS, epoch, entries)
        real = items > 0
        drawn = below(draw, masking.mask_ratio)
        hidden = real & drawn
        alone = self.hides_last_alone(samples, epoch)
        if alone.any() or masking.hide_last:
            is_last = np.arange(width) == real.sum(1, keepdims=True) - 1
            if masking.hide_last:
                hidden |= is_last
            if alone.any():
                hidden = np.where(alone[:, None], is_last, hidden)
        shown: int | np.ndarray = self.num_items
        if masking.random_ratio:
            # A number below mask_ratio is as good as a fresh one when it is stretched to [0, 1). A
            # last item that is hidden in any case and has a number above shows the mask.
            show = below(draw, masking.mask_ratio * (1.0 - masking.random_ratio))
            random_items = 1 + uniform_below(
                hash64(self.seed, _ITEMS, epoch, entries), self.num_items - 1
            )
            shown = np.where(show | ~drawn, self.num_items, random_items)
        return np.where(hidden, shown, items), np.where(hidden, items, 0)


class Laid:
    """Windows of up to max_len items of every user, numbered; offsets [users + 1].

    From the end of a sequence every `stride` items, and one at its beginning; or from the start
    every `stride` items to its end.
    """

    def __init__(self, offsets: np.ndarray, max_len: int, stride: int, from_start: bool = False):
        self.offsets = offsets
        self.max_len = max_len
        self.stride = stride
        self.from_start = from_start
        lengths = np.diff(offsets)
        if from_start:
            counts = -(-lengths // stride)
        else:
            inner = -(-np.maximum(lengths - max_len, 0) // stride)  # start after the first item
            counts = np.where(lengths > 0, inner + 1, 0)
        self.window_index = WindowIndex(counts)

    def __len__(self) -> int:
        return len(self.window_index)

    def find(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where windows lie: users [n], starts [n], stops [n]."""
        users, nth = self.window_index.find(numbers)
        begin, end = self.offsets[users], self.offsets[users + 1]
        if self.from_start:
            starts = begin + nth * self.stride
        else:
            starts = np.maximum(end - self.max_len - nth * self.stride, begin)
        return users, starts, np.minimum(starts + self.max_len, end)
