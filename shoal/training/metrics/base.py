"""What metrics are made of: blocks of users or rows, what is known of the run, and the bases."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from shoal.data.dataset import Ragged

State = dict[str, Tensor]
ROWS = ("row_users", "row_scores", "row_labels")
KEPT = ("kept_users", "kept_positives", "kept_items", "kept_hits", "kept_values")
CONCATENATED = (*ROWS, *KEPT, "first_ranks")  # parts of a state; all others are summed


@dataclass
class Ranked:
    """Recommendations to one block of users.

    items          [b, K] int64, best first, K = max topk or the size of the catalogue; 0 where a
                   user has fewer than K candidates
    hits           [b, K] bool, False where items is 0
    num_positives  [b] int64, distinct positives of each user, at least 1
    auc_numerator  [b] float64, over all (positive, negative) pairs of candidates: 1 where the
                   positive has the higher score, 0.5 where they are equal; for `wants_pairs`
    num_negatives  [b] int64, candidates that are not positives; with auc_numerator
    first_rank     [b] float64, rank of the best positive among all candidates; with auc_numerator
    users          [b] int64, whose lists they are; for groups, and for what is kept of each user
    """

    items: Tensor
    hits: Tensor
    num_positives: Tensor
    auc_numerator: Tensor | None = None
    num_negatives: Tensor | None = None
    first_rank: Tensor | None = None
    users: Tensor | None = None

    def chosen(self, rows: Tensor) -> "Ranked":
        """The rows of some of the users; rows: a mask or an index of them."""
        columns: Any = [getattr(self, field.name) for field in fields(self)]
        parts: Any = [None if column is None else column[rows] for column in columns]
        return Ranked(*parts)


@dataclass
class Valued:
    """Rows with a predicted value and a label: users int64 [n], scores [n], labels [n]."""

    users: Tensor
    scores: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Groups:
    """Groups of users and of items, by numbers from 1; 0 is none of them.

    users    int64 [num_users], the group of each
    items    the groups of each item
    history  the items that each user has in training, once each
    """

    users: np.ndarray | None = None
    items: Ragged | None = None
    history: Ragged | None = None

    @cached_property
    def num_users(self) -> int:
        """Groups of users, with 0."""
        assert self.users is not None
        return int(self.users.max(initial=0)) + 1

    @cached_property
    def num_items(self) -> int:
        """Groups of items, with 0."""
        assert self.items is not None
        return int(self.items.values.max(initial=0)) + 1

    def of_items(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Groups of items [n]: place of the item, group, and how many groups the item has."""
        assert self.items is not None
        place, groups = expand(self.items, items)
        return place, groups, np.diff(self.items.offsets)[items][place]


def expand(lists: Ragged, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of the lists of `ids`: place among ids, value.

    >>> expand(Ragged(np.array([7, 8, 9]), np.array([0, 0, 2, 3])), np.array([2, 1]))
    (array([0, 1, 1]), array([9, 7, 8]))
    """
    starts, lengths = lists.offsets[ids], np.diff(lists.offsets)[ids]
    place = np.repeat(np.arange(len(ids)), lengths)
    ends = lengths.cumsum()
    within = np.arange(len(place)) - np.repeat(ends - lengths, lengths)
    return place, lists.values[starts[place] + within]


@dataclass(frozen=True)
class Setting:
    """Settings of the run for metrics: topk int64 [T], popularity float64 [num_items], groups."""

    topk: Tensor
    popularity: Tensor
    tail_ratio: float
    groups: Groups = Groups()

    @cached_property
    def discount(self) -> Tensor:
        """Worth of a hit at each rank for NDCG, [max topk]."""
        return 1 / torch.arange(2, int(self.topk.max()) + 2, dtype=torch.float64).log2()

    @cached_property
    def ideal(self) -> Tensor:
        """The most that 0, 1, 2, … hits can be worth, [max topk + 1]."""
        return pad(self.discount.cumsum(0), (1, 0))

    @cached_property
    def tail(self) -> Tensor:
        """Mask of the tail items, bool [num_items]; of equal counts the lower id comes first."""
        tail = torch.zeros(len(self.popularity), dtype=torch.bool)
        if self.tail_ratio > 1:
            tail[1:] = self.popularity[1:] <= self.tail_ratio
        else:
            # The small addition: 0.29 × 100 is 28.999… in floating point.
            count = max(int((len(tail) - 1) * self.tail_ratio + 1e-9), 1)
            tail[1 + self.popularity[1:].argsort(stable=True)[:count]] = True
        return tail


class Ranking:
    """Many users' recommendations, with the work that several metrics share done once."""

    def __init__(self, block: Ranked, setting: Setting) -> None:
        self.block, self.topk, self.num_items = block, setting.topk, len(setting.popularity)
        longest = len(setting.discount)
        self.items = block.items[:, :longest]  # [b, K]
        self.hits = block.hits[:, :longest].double()  # [b, K]
        self.num_positives = block.num_positives[:, None]  # [b, 1]
        self.ranks = torch.arange(1, self.items.shape[1] + 1, dtype=torch.float64)  # [K]
        self.within = (self.ranks[:, None] <= self.topk).double()  # [K, T]
        self.groups = setting.groups

    @cached_property
    def hits_at(self) -> Tensor:
        """Hits among the first k, [b, T]."""
        return self.hits @ self.within

    @cached_property
    def length_at(self) -> Tensor:
        """Items recommended among the first k, [b, T]; less than k where candidates ran out."""
        return ((self.items > 0).double() @ self.within).clamp_(min=1)

    @cached_property
    def item_counts(self) -> Tensor:
        """How often each item is among the first k, [T, num_items]; the padding is not counted."""
        parts = [self.items[:, :k].reshape(-1) for k in self.topk.tolist()]
        counts = torch.stack([torch.bincount(part, minlength=self.num_items) for part in parts])
        counts[:, 0] = 0
        return counts

    @cached_property
    def item_groups(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Groups of the recommended items: row, rank, group, how many the item has; [n] each."""
        place, group, count = self.groups.of_items(self.items.reshape(-1).numpy())
        row, column = np.divmod(place, self.items.shape[1])
        return row, column + 1, group, count

    @property
    def users(self) -> np.ndarray:
        """The users of the lists, [b]."""
        assert self.block.users is not None
        return self.block.users.numpy()


class Metric:
    """One metric: the state that a block adds, and the value of a state.

    measure  the state of a block: of a Ranking or of a Valued (in float64), as `needs` says
    compute  the value of a state: [T] where the metric has topk, else a scalar; a state also holds
             the number of `users` and of `rows`
    of_each  the value of each user of a Ranking: [b, T], or [b, 1] without topk; None: it has none

    PerUser is a Metric that is the mean over users of one value:

    >>> from shoal.training.metrics import PerUser
    >>> class SecondHit(PerUser):
    ...     def value(self, ranking):  # [users, cut-offs]
    ...         return (ranking.hits_at > 1).double()
    >>> import shoal
    >>> small = {"data.synthetic": {"users": 90, "items": 60, "interactions": 2000}, "epochs": 1}
    >>> keys = {"run.output": "runs/metric", "run.log_level": "warning", "run.progress": False}
    >>> metrics = {"eval.metrics": [SecondHit], "eval.valid_metric": "SecondHit@10"}
    >>> sorted(shoal.run("Pop", "synthetic", config_dict=metrics, **small, **keys)["test"])
    ['secondhit@10']
    """

    # What a config, its checks, tables and the choice of a checkpoint know of the metric.
    needs: ClassVar[Literal["ranked", "valued", "either"]]  # lists, values against labels
    higher_is_better: ClassVar[bool] = True
    best_at: ClassVar[float | None] = None  # the best value, where it is neither of the two ends
    has_topk: ClassVar[bool] = False  # it is reported for each cut-off of eval.topk
    wants_pairs: ClassVar[bool] = False  # it reads `auc_numerator` and what comes with it
    reads_groups: ClassVar[Literal["user", "item"] | None] = None  # of eval.groups

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.part = f"{type(self).__module__}.{type(self).__qualname__}"  # its part of a state

    def measure(self, block: Any) -> State:
        raise NotImplementedError  # every metric writes its own

    def compute(self, state: State) -> Tensor:
        raise NotImplementedError  # every metric writes its own

    def of_each(self, block: Ranking) -> Tensor | None:
        return None


class PerUser(Metric):
    """Mean over users of a value [b, T] that each user's list has at each k."""

    needs = "ranked"
    has_topk = True

    def value(self, ranking: Ranking) -> Tensor:
        raise NotImplementedError  # every metric writes its own

    def measure(self, block: Ranking) -> State:
        return {self.part: self.of_each(block).sum(dim=0)}

    def of_each(self, block: Ranking) -> Tensor:
        values, expected_shape = self.value(block), (len(block.items), len(block.topk))
        if values.shape != expected_shape:
            raise ValueError(
                f"metric {type(self).__name__}: value gives a tensor of shape "
                f"{list(values.shape)}, not {list(expected_shape)}, which is [users, cut-offs]"
            )
        return values.double()

    def compute(self, state: State) -> Tensor:
        return state[self.part] / state["users"]


class OverItems(Metric):
    """A value [T] of how often each item is recommended, counts [T, items without padding]."""

    needs = "ranked"
    has_topk = True

    def value(self, counts: Tensor) -> Tensor:
        raise NotImplementedError  # every metric writes its own

    def measure(self, block: Ranking) -> State:
        return {"item_counts": block.item_counts}

    def compute(self, state: State) -> Tensor:
        return self.value(state["item_counts"][:, 1:])


class PerRow(Metric):
    """Mean over rows of a loss [n]."""

    needs = "valued"
    higher_is_better = False

    def value(self, rows: Valued) -> Tensor:
        raise NotImplementedError  # every metric writes its own

    def measure(self, block: Valued) -> State:
        return {self.part: self.value(block).sum()}

    def compute(self, state: State) -> Tensor:
        return state[self.part] / state["rows"]
