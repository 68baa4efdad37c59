"""What evaluating the valid or the test split needs: positives, seen items, candidates, labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.config.schema import EvalSection
from shoal.data.dataset import Dataset, Split
from shoal.data.random import hash64
from shoal.data.sampler import NegativeSampler, SeenPairs, distinct

EARLIER: dict[str, tuple[Split, ...]] = {"valid": ("train",), "test": ("train", "valid")}


@dataclass
class UserLists:
    """For each user of a phase a list of items, flattened (see data.history for the drawing)."""

    items: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(
        cls, users: np.ndarray, items: np.ndarray, order: np.ndarray, num_users: int
    ) -> UserLists:
        """Lists of the users in `order`; the pairs are unique and ascending by item."""
        num_items = int(items.max(initial=0)) + 1
        keys = distinct(users.astype(np.int64) * num_items + items)
        users, items = keys // num_items, keys % num_items
        starts = np.searchsorted(users, order, side="left")
        stops = np.searchsorted(users, order, side="right")
        lengths = stops - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        flat = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return cls(items[flat], offsets)

    @classmethod
    def none(cls, num_users: int) -> UserLists:
        """A list without items for each of so many users."""
        return cls(np.zeros(0, np.int64), np.zeros(num_users + 1, np.int64))

    def chosen(self, places: np.ndarray) -> UserLists:
        """The lists at these places, in their order."""
        lengths = self.offsets[places + 1] - self.offsets[places]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        flat = np.repeat(self.offsets[places] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return UserLists(self.items[flat], offsets)

    def block(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Lists first..last-1 as pairs: row within the block [n], item [n]."""
        offsets = self.offsets[first : last + 1]
        rows = np.repeat(np.arange(last - first), np.diff(offsets))
        return rows, self.items[offsets[0] : offsets[-1]]


def parse_mode(mode: str | dict, phase: str) -> tuple[str, int]:
    """`full`, `labeled`, `uni100`, `pop100` -> kind and number of negatives."""
    text = mode if isinstance(mode, str) else mode[phase]
    if text in ("full", "labeled"):
        return text, 0
    return text[:3], int(text[3:])


def sampled_users(users: np.ndarray, max_users: int, seed: int) -> np.ndarray:
    """A sample of the users, ascending; depends on the seed and the users only."""
    if len(users) <= max_users:
        return users
    first = np.argsort(hash64(seed, users), kind="stable")[:max_users]
    return np.sort(users[first])


class PhaseData:
    """Data for evaluating one phase, prepared once."""

    def __init__(self, dataset: Dataset, phase: Split, section: EvalSection, seed: int):
        self.mode, self.num_negatives = parse_mode(section.mode, phase)
        users, items = dataset.user_ids(phase), dataset.item_ids(phase)
        self.users = np.unique(users)  # ascending: the tiles are a pure function of the split
        if phase == "valid" and isinstance(section.valid_users, int):
            self.users = sampled_users(self.users, section.valid_users, seed)
        self.labels: UserLists | None = None
        if self.mode == "labeled":
            self._take_labels(dataset, phase)
            return
        self.positives = UserLists.of(users, items, self.users, dataset.num_users)
        self.is_positive = SeenPairs(users, items, dataset.num_users, dataset.num_items)
        earlier = EARLIER[phase]
        seen_users = np.concatenate([dataset.user_ids(p) for p in earlier])
        seen_items = np.concatenate([dataset.item_ids(p) for p in earlier])
        assert section.repeatable != "auto", "the data decides before an evaluator is built"
        if section.repeatable:
            self.masked = UserLists.none(len(self.users))
        else:
            self.masked = UserLists.of(seen_users, seen_items, self.users, dataset.num_users)
        if self.num_negatives:
            self._draw_negatives(dataset, phase, (seen_users, seen_items), seed)

    def to_find(self, users: np.ndarray) -> np.ndarray:
        """The positives of some users of the phase, one after the other: items [n]."""
        places = np.searchsorted(self.users, users)
        if self.mode != "labeled":
            return self.positives.chosen(places).items
        labels = UserLists(self.row_labels, self.candidates.offsets).chosen(places).items
        return self.candidates.chosen(places).items[labels > 0]

    def _draw_negatives(
        self, dataset: Dataset, phase: Split, seen: tuple[np.ndarray, np.ndarray], seed: int
    ) -> None:
        """N different negatives for each positive; their union is a user's candidates."""
        users, items = dataset.user_ids(phase), dataset.item_ids(phase)
        seen_users = np.concatenate([seen[0], users])
        seen_items = np.concatenate([seen[1], items])
        sampler = NegativeSampler(
            SeenPairs(seen_users, seen_items, dataset.num_users, dataset.num_items),
            dataset.num_items,
            distribution="popularity" if self.mode == "pop" else "uniform",
            alpha=1.0,
            popularity=np.bincount(dataset.item_ids("train"), minlength=dataset.num_items),
            seed=seed,
        )
        # Training epochs count from 0, so -1 and -2 give separate draws.
        drawn = sampler.draw_distinct(
            users, dataset.splits[phase], -1 if phase == "valid" else -2, self.num_negatives
        ).reshape(-1)
        owners = np.repeat(users, self.num_negatives)[drawn > 0]
        self.candidates = UserLists.of(
            np.concatenate([users, owners]),
            np.concatenate([items, drawn[drawn > 0]]),
            self.users,
            dataset.num_users,
        )

    def _take_labels(self, dataset: Dataset, phase: Split) -> None:
        """Rows of the phase with their labels; a user's candidates are the rows of that user."""
        if dataset.label_field not in dataset.inter:
            raise ValueError(
                f"eval.mode labeled needs the column {dataset.label_field!r}, which data set "
                f"{dataset.name!r} does not have; load it, or make one with data.threshold"
            )
        rows = dataset.splits[phase]
        users = np.asarray(dataset.inter[dataset.user_field])[rows]
        is_taken = np.isin(users, self.users)
        rows, users = rows[is_taken], users[is_taken]
        order = np.argsort(users, kind="stable")
        offsets = np.searchsorted(users[order], np.append(self.users, dataset.num_users))
        column = np.asarray(dataset.inter[dataset.label_field], dtype=np.float32)
        self.candidates = UserLists(
            np.asarray(dataset.inter[dataset.item_field])[rows][order], offsets
        )
        self.row_labels = column[rows][order]
