"""Histories: each user's items in order, as one flat array."""

from __future__ import annotations

import numpy as np

from shoal.data.dataset import Dataset, Split


class Histories:
    """Items of every user in the order of time (or of the file), up to a split's end.

    user 1: a b c    user 2: d        items    a b c d
                                      offsets  0 0 3 4      (user 0 is padding)
    """

    def __init__(
        self,
        dataset: Dataset,
        splits: tuple[Split, ...],
        max_len: int,
        timed: bool = False,
        request_split: Split | None = None,
        with_context: bool = False,
    ):
        """timed: keep the times of items.

        request_split: the first interaction of a user in this split is the request. with_context:
        what stands before items to find belongs to the histories of their sessions.
        """
        self.max_len = max_len
        self.times: np.ndarray | None = None  # int64, of items
        stored_history = None if timed else dataset.history(splits)
        if stored_history is not None:
            self.items, self.offsets = stored_history
            return
        row_lists = [dataset.splits[split] for split in splits]
        rows = np.sort(np.concatenate([*row_lists, *([dataset.context] if with_context else [])]))
        users = np.asarray(dataset.inter[dataset.user_field])[rows]
        items = np.asarray(dataset.inter[dataset.item_field])[rows]
        if dataset.time_field is not None and dataset.time_field in dataset.inter:
            times = np.asarray(dataset.inter[dataset.time_field])[rows]
            order = np.lexsort((rows, times, users))
        else:
            order = np.argsort(users, kind="stable")
        self.items = items[order]
        self.offsets = np.zeros(dataset.num_users + 1, dtype=np.int64)
        np.cumsum(np.bincount(users, minlength=dataset.num_users), out=self.offsets[1:])
        if timed:
            if dataset.time_field is None or dataset.time_field not in dataset.inter:
                raise ValueError(
                    f"data set {dataset.name!r} has no times, and this model reads the times of a "
                    "history; name their column in data.fields.time, or choose another model"
                )
            self.times = times[order].astype(np.int64)
            self._requests = _first_times(dataset, request_split)

    def windows(self) -> WindowIndex:
        """Windows that cover every (item, next item) pair once, laid from the end of a sequence.

        The nth window of a user ends n * max_len before the end of the user's items.
        """
        pairs = np.maximum(np.diff(self.offsets) - 1, 0)
        return WindowIndex(-(-pairs // self.max_len))

    def gather(self, users: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """History and target of windows: [n, max_len] each, left-aligned, 0 pads."""
        starts = np.maximum(stops - 1 - self.max_len, self.offsets[users])
        return (
            self.padded(starts, stops - 1 - starts),
            self.padded(starts + 1, stops - 1 - starts),
        )

    def latest(self, users: np.ndarray) -> np.ndarray:
        """The last max_len items of each user: [n, max_len], left-aligned, 0 pads."""
        stops = self.offsets[users + 1]
        starts = np.maximum(stops - self.max_len, self.offsets[users])
        return self.padded(starts, stops - starts)

    def padded(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Runs of `lengths` items from flat `starts`: [n, max_len], left-aligned, 0 pads."""
        column = np.arange(self.max_len)
        inside = column < lengths[:, None]
        if len(self.items) == 0:
            return np.zeros(inside.shape, dtype=np.int64)
        items = self.items.take(starts[:, None] + column, mode="clip")
        items *= inside
        return items.astype(np.int64, copy=False)  # items on disk have fewer bits

    def window_times(self, users: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """Times of windows' items and of the last target: [n, max_len + 1], 0 pads."""
        assert self.times is not None
        starts = np.maximum(stops - 1 - self.max_len, self.offsets[users])
        return self._times(starts, stops - starts)

    def _times(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Runs of `lengths` times from flat `starts`: [n, max_len + 1], left-aligned, 0 pads."""
        assert self.times is not None
        column = np.arange(self.max_len + 1)
        inside = column < lengths[:, None]
        if not len(self.times):
            return np.zeros(inside.shape, dtype=np.int64)
        return np.where(inside, self.times[np.where(inside, starts[:, None] + column, 0)], 0)

    def latest_times(self, users: np.ndarray) -> np.ndarray:
        """Times of `latest` and, behind the last item, of the request: [n, max_len + 1].

        Without a request it is now: as late as the last item.
        """
        assert self.times is not None
        stops = self.offsets[users + 1]
        lengths = np.minimum(stops - self.offsets[users], self.max_len)
        times = self._times(stops - lengths, lengths)
        rows = np.arange(len(users))
        last = times[rows, np.maximum(lengths - 1, 0)]
        times[rows, lengths] = np.maximum(self._requests[users], last)
        return times


class EarlierEvents:
    """The user's interactions before each interaction: positive ones, of earlier times.

    Without times, those of earlier rows. Neither the interaction itself is among them nor any of
    the same time. all_labels: interactions that are not positive count, too.

    items of a user, in order    a  b  c  d      (b has label 0)
    history                      -  a  a  a c
    all_labels                   -  a  ab abc
    """

    def __init__(self, dataset: Dataset, length: int, all_labels: bool = False):
        self.length = length
        users = np.asarray(dataset.inter[dataset.user_field])
        when = np.arange(len(users))
        if dataset.time_field is not None and dataset.time_field in dataset.inter:
            when = np.asarray(dataset.inter[dataset.time_field])
        order = np.lexsort((when, users))
        is_kept = np.ones(len(users), dtype=bool)
        if dataset.label_field is not None and not all_labels:
            is_kept = np.asarray(dataset.inter[dataset.label_field])[order] > 0
        self.events = order[is_kept]  # row numbers, user by user in order
        counts = np.bincount(users[order][is_kept], minlength=dataset.num_users)
        self.offsets = np.concatenate([[0], np.cumsum(counts)])
        # Kept rows before the first one of the same user and time.
        before = np.cumsum(is_kept) - is_kept
        new = np.ones(len(users), dtype=bool)
        new[1:] = (np.diff(users[order]) != 0) | (np.diff(when[order]) != 0)
        self.stops = np.empty(len(users), dtype=np.int64)
        self.stops[order] = before[np.flatnonzero(new)][np.cumsum(new) - 1]
        self.users = users

    def of_rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Histories of interactions: row numbers one after the other, and offsets [rows + 1]."""
        return self._lists(self.users[rows], self.stops[rows])

    def of_users(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All interactions of users, for one that has not happened."""
        return self._lists(users, self.offsets[users + 1])

    def _lists(self, users: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.minimum(stops - self.offsets[users], self.length)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) + np.repeat(stops - lengths - offsets[:-1], lengths)
        return self.events[places], offsets


def _first_times(dataset: Dataset, split: Split | None) -> np.ndarray:
    """The time of each user's first interaction of a split: int64 [num_users], 0 without one."""
    first_times = np.zeros(dataset.num_users, dtype=np.int64)
    if split is not None:
        users = dataset.user_ids(split)
        assert dataset.time_field is not None
        times = dataset.flat(dataset.time_field)[dataset.splits[split]]
        order = np.argsort(-times, kind="stable")  # the earliest is written last
        first_times[users[order]] = times[order].astype(np.int64)
    return first_times


class WindowIndex:
    """The windows of all users, numbered user by user: counts [users] of each.

    It holds a number per user, not per window.
    """

    def __init__(self, counts: np.ndarray):
        self.stops = np.cumsum(counts)
        self.counts = counts

    def __len__(self) -> int:
        return int(self.stops[-1]) if len(self.stops) else 0

    def find(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The users of windows [n], and which of its user's windows each one is [n]."""
        users = np.searchsorted(self.stops, numbers, side="right")
        return users, numbers - (self.stops[users] - self.counts[users])
