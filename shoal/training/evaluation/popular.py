"""What the most popular items for everyone are worth: the line that a model has to beat."""

import numpy as np
import torch
from torch import Tensor

from shoal.data.batch import Batch
from shoal.models.base import Facts, Retrieval
from shoal.training.evaluation.splits import UserLists
from shoal.training.metrics import higher_is_better

LARGEST_EASE = 10_000  # items: EASE inverts a matrix of items x items, 0.8 GB here
FEW_USERS = 500  # the metrics of so many change by several percent from one split to the next


class PopularVectors(Retrieval):
    """The scores of Pop as dot products of width one, which an evaluation ranks fastest."""

    trainable = False
    counts: Tensor

    def __init__(self, counts: Tensor):
        """counts: training interactions of each item [n]."""
        super().__init__(Retrieval.Options(), Facts(num_items=len(counts)))
        self.register_buffer("counts", counts.float())

    def encode_query(self, batch: Batch) -> Tensor:
        return torch.ones(batch.size, 1, device=self.counts.device)

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.counts[ids].unsqueeze(-1)


class PopularLists:
    """The most popular items that a user has not seen, found without looking at all items.

    A user who has seen m items finds the best k among the k + m most popular ones. With 300,000
    items that spares nearly all of the work that scoring them would be.
    """

    def __init__(self, counts: np.ndarray, seen: UserLists, keep: int):
        """counts: training interactions of each item [n]; seen: lists of items not to rank."""
        self.seen, self.keep = seen, keep
        # Of equal counts the lower item comes first, as in every ranking; 0 is the padding.
        self.order = 1 + np.argsort(-counts[1:], kind="stable")
        self.place = np.empty(len(counts), np.int64)
        self.place[self.order] = np.arange(len(self.order))

    def best(self, first: int, last: int) -> np.ndarray:
        """The lists of users first..last-1: items [users, keep], 0 where there are no more."""
        rows, items = self.seen.block(first, last)
        most = int(np.bincount(rows, minlength=1).max(initial=0))
        candidates = self.order[: self.keep + most]
        taken = np.zeros((last - first, len(candidates)), bool)
        places = self.place[items]
        inside = places < len(candidates)
        taken[rows[inside], places[inside]] = True
        columns = np.argsort(taken, axis=1, kind="stable")[:, : self.keep]  # False before True
        return np.where(np.take_along_axis(taken, columns, 1), 0, candidates[columns])


def popular_line(
    base: dict[str, float], test: dict[str, float], metric: str, digits: int, advice: str
) -> str:
    """A line for the log; metric: the one by which the best epoch was chosen.

    advice: what to do where the model is worse.
    """
    line = f"the most popular items for everyone: {metric} {base[metric]:.{digits}f}"
    sign = 1.0 if higher_is_better(metric) else -1.0
    if sign * test[metric] >= sign * base[metric]:
        return line
    return f"{line}. The model has {test[metric]:.{digits}f}, which is worse: {advice}"


def remedy(trainable: bool, num_items: int, num_users: int) -> str:
    """What to do about a model that is worse than the most popular items.

    trainable: whether the model takes steps; a closed form has neither epochs nor batches.
    num_users: those who were tested.

    >>> remedy(trainable=False, num_items=40, num_users=9000)
    'search its options (shoal tune), or take another model (shoal models)'
    """
    if not trainable:
        advice = "search its options (shoal tune), or take another model (shoal models)"
    else:
        advice = "train longer (train.epochs), in smaller batches (train.batch_size)"
        advice += ", search its settings (shoal tune), or take "
        advice += "EASE" if num_items <= LARGEST_EASE else "another model (shoal models)"
    if num_users < FEW_USERS:
        advice += f"; only {num_users:,} users were tested, so it may also be chance"
    return advice
