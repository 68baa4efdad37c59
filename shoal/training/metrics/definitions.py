"""What each metric is: its state, and the value of a state.

Definitions, and where they differ from those of other tools, are in docs/metrics.md.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from shoal.config import checks
from shoal.config.errors import did_you_mean
from shoal.training.metrics.pairs import pair_counts

State = dict[str, Tensor]
ROWS = ("row_users", "row_scores", "row_labels")
KEPT = ("kept_users", "kept_positives", "kept_items", "kept_hits", "kept_values")
CONCATENATED = (*ROWS, *KEPT)  # parts of a state; all others are summed


@dataclass
class Ranked:
    """Recommendations to one block of users.

    items          [b, K] int64, best first, K = max topk or the size of the catalogue; 0 where a
                   user has fewer than K candidates
    hits           [b, K] bool, False where items is 0
    num_positives  [b] int64, distinct positives of each user, at least 1
    auc_numerator  [b] float64, over all (positive, negative) pairs of candidates: 1 where the
                   positive has the higher score, 0.5 where they are equal; for GAUC only
    num_negatives  [b] int64, candidates that are not positives; for GAUC only
    users          [b] int64, whose lists they are; for what is kept of each user
    """

    items: Tensor
    hits: Tensor
    num_positives: Tensor
    auc_numerator: Tensor | None = None
    num_negatives: Tensor | None = None
    users: Tensor | None = None


@dataclass
class Valued:
    """Rows with a predicted value and a label: users int64 [n], scores [n], labels [n]."""

    users: Tensor
    scores: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Setting:
    """What metrics know of the run: topk int64 [T], popularity float64 [num_items]."""

    topk: Tensor
    popularity: Tensor
    tail_ratio: float

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
        """Which items are the tail, bool [num_items]; of equal counts the lower id comes first."""
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


class Metric:
    """One metric: the state that a block adds, and the value of a state.

    measure  the state of a block: of a Ranking or of a Valued (in float64), as `needs` says
    compute  the value of a state: [T] where the metric has topk, else a scalar; a state also holds
             the number of `users` and of `rows`
    of_each  the value of each user of a Ranking: [b, T], or [b, 1] without topk; None: it has none
    """

    needs: ClassVar[Literal["ranked", "valued", "either"]]
    higher_is_better: ClassVar[bool] = True
    has_topk: ClassVar[bool] = False
    wants_pairs: ClassVar[bool] = False  # True: of a ranking's `auc_numerator`, `num_negatives`

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
        return {self.part: self.value(block).sum(dim=0)}

    def of_each(self, block: Ranking) -> Tensor:
        return self.value(block)

    def compute(self, state: State) -> Tensor:
        return state[self.part] / state["users"]


class Recall(PerUser):
    """Hits among the first k / positives."""

    def value(self, ranking: Ranking) -> Tensor:
        return ranking.hits_at / ranking.num_positives


class Precision(PerUser):
    """Hits among the first k / k."""

    def value(self, ranking: Ranking) -> Tensor:
        return ranking.hits_at / ranking.topk


class Hit(PerUser):
    """1 if there is a hit among the first k."""

    def value(self, ranking: Ranking) -> Tensor:
        return (ranking.hits_at > 0).double()


class MRR(PerUser):
    """1 / rank of the first hit, 0 if it is beyond k."""

    def value(self, ranking: Ranking) -> Tensor:
        first = (ranking.hits / ranking.ranks).amax(dim=1, keepdim=True)
        return first * (ranking.hits_at > 0)


class NDCG(PerUser):
    """Discounted hits / those of the best possible list."""

    def value(self, ranking: Ranking) -> Tensor:
        discount = self.setting.discount[: len(ranking.ranks), None] * ranking.within
        best = self.setting.ideal[torch.minimum(ranking.num_positives, ranking.topk)]
        return ranking.hits @ discount / best


class MAP(PerUser):
    """Sum of the precision at each hit among the first k / min(positives, k)."""

    def value(self, ranking: Ranking) -> Tensor:
        at_hits = ranking.hits.cumsum(dim=1) / ranking.ranks * ranking.hits
        return at_hits @ ranking.within / torch.minimum(ranking.num_positives, ranking.topk)


class AveragePopularity(PerUser):
    """Mean number of training interactions of the recommended items."""

    higher_is_better = False

    def value(self, ranking: Ranking) -> Tensor:
        return self.setting.popularity[ranking.items] @ ranking.within / ranking.length_at


class TailPercentage(PerUser):
    """Share of the recommended items that belong to the tail."""

    def value(self, ranking: Ranking) -> Tensor:
        return self.setting.tail[ranking.items].double() @ ranking.within / ranking.length_at


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


class ItemCoverage(OverItems):
    """Share of the items that are recommended to anyone."""

    def value(self, counts: Tensor) -> Tensor:
        return (counts > 0).double().mean(dim=1)


class GiniIndex(OverItems):
    """Inequality of the items' counts: 0 all alike, towards 1 one item takes all."""

    higher_is_better = False

    def value(self, counts: Tensor) -> Tensor:
        n = counts.shape[1]
        weights = 2 * torch.arange(1, n + 1) - n - 1
        return (counts.sort(dim=1).values * weights).sum(dim=1) / (n * counts.sum(dim=1)).double()


class ShannonEntropy(OverItems):
    """Entropy, in nats, of the distribution of recommended items."""

    def value(self, counts: Tensor) -> Tensor:
        share = counts / counts.sum(dim=1, keepdim=True).double()
        return -torch.xlogy(share, share).sum(dim=1)


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


class MAE(PerRow):
    """Mean absolute error."""

    def value(self, rows: Valued) -> Tensor:
        return (rows.scores - rows.labels).abs()


class RMSE(PerRow):
    """Root of the mean squared error."""

    def value(self, rows: Valued) -> Tensor:
        return (rows.scores - rows.labels).square()

    def compute(self, state: State) -> Tensor:
        return super().compute(state).sqrt()


class LogLoss(PerRow):
    """Mean cross-entropy of 0/1 labels under predicted probabilities."""

    def value(self, rows: Valued) -> Tensor:
        _check_binary(rows.labels, "LogLoss")
        if ((rows.scores < 0) | (rows.scores > 1)).any():
            low, high = rows.scores.min().item(), rows.scores.max().item()
            raise ValueError(
                f"LogLoss needs probabilities between 0 and 1, got scores from {low:g} to "
                f"{high:g}; use AUC or GAUC for scores that are not probabilities"
            )
        of_label = torch.where(rows.labels == 1, rows.scores, 1 - rows.scores)
        return -of_label.clamp(min=1e-15).log()


class Calibration(Metric):
    """Mean predicted probability / mean label: 1 where clicks come as often as predicted."""

    needs = "valued"

    def measure(self, block: Valued) -> State:
        return {"predicted": block.scores.sum(), "observed": block.labels.sum()}

    def compute(self, state: State) -> Tensor:
        return state["predicted"] / state["observed"]  # inf or nan where nobody clicked


class AUC(Metric):
    """Share of all (positive, negative) pairs of rows in the right order, ties counting half."""

    needs = "valued"

    def measure(self, block: Valued) -> State:
        _check_binary(block.labels, "AUC")
        return {"row_scores": block.scores, "row_labels": block.labels}

    def compute(self, state: State) -> Tensor:
        scores, labels = state["row_scores"], state["row_labels"]
        everyone = torch.zeros(len(scores), dtype=torch.int64)
        pairs, positives, negatives = pair_counts(everyone, scores, labels)
        return (pairs / (positives.double() * negatives)).squeeze(0)  # nan where a class is absent


class GAUC(Metric):
    """Mean of the users' AUC, weighted by their positives; users of one class are left out.

    From Ranked blocks over all candidates of a user; where there are none, from labeled rows.
    """

    needs = "either"
    wants_pairs = True

    def measure(self, block: Ranking | Valued) -> State:
        if isinstance(block, Valued):
            _check_binary(block.labels, "GAUC")
            rows = {"row_scores": block.scores, "row_labels": block.labels}
            return {"row_users": block.users, **rows}
        numerator, negatives = block.block.auc_numerator, block.block.num_negatives
        assert numerator is not None and negatives is not None, "wants_auc_pairs was True"
        return self._weigh(numerator, block.block.num_positives, negatives)

    def compute(self, state: State) -> Tensor:
        if not state["users"]:
            state = self._weigh(*pair_counts(*(state[part] for part in ROWS)))
        return state["GAUC"] / state["gauc_weight"]

    def of_each(self, block: Ranking) -> Tensor:
        """AUC; nan where a user has one class alone."""
        numerator, negatives = block.block.auc_numerator, block.block.num_negatives
        assert numerator is not None and negatives is not None, "wants_auc_pairs was True"
        return (numerator.double() / (block.block.num_positives * negatives))[:, None]

    @staticmethod
    def _weigh(numerator: Tensor, positives: Tensor, negatives: Tensor) -> State:
        kept = (positives > 0) & (negatives > 0)
        # positives × AUC of a user = numerator / negatives
        total = (numerator[kept].double() / negatives[kept]).sum()
        return {"GAUC": total, "gauc_weight": positives[kept].sum()}


METRICS: dict[str, type[Metric]] = {
    metric.__name__: metric
    for metric in (
        *(Recall, MRR, NDCG, Hit, MAP, Precision, GAUC, ItemCoverage, AveragePopularity),
        *(GiniIndex, ShannonEntropy, TailPercentage, AUC, LogLoss, Calibration, MAE, RMSE),
    )
}


def register(name: str, metric: type[Metric]) -> None:
    """Let configs choose a metric by this name: `eval.metrics: [NAME]`.

    >>> class SecondHit(PerUser):
    ...     def value(self, ranking):  # [b, T]: a value of each user's list at each k
    ...         return (ranking.hits_at > 1).double()
    >>> register("SecondHit", SecondHit)
    """
    METRICS[name] = metric
    if name not in checks.METRICS:
        checks.METRICS.append(name)
        if metric.has_topk:
            checks.TOPK_METRICS.append(name)
        if metric.needs == "valued":
            checks.LABEL_METRICS.append(name)


def canonical(name: str) -> str:
    """The proper spelling of a metric's name, whatever its case."""
    by_lower = {one.lower(): one for one in METRICS}
    if name.lower() not in by_lower:
        raise ValueError(
            f"unknown metric {name!r}; known are {', '.join(METRICS)}{did_you_mean(name, METRICS)}"
        )
    return by_lower[name.lower()]


def higher_is_better(name: str) -> bool:
    """Whether more is better, for a name such as `MRR@10` or `rmse`."""
    return METRICS[canonical(name.partition("@")[0])].higher_is_better


def _check_binary(labels: Tensor, name: str) -> None:
    odd = (labels != 0) & (labels != 1)
    if odd.any():
        raise ValueError(
            f"{name} needs labels that are 0 or 1, got {labels[odd][0].item():g}; turn ratings "
            "into labels with data.threshold, or use MAE and RMSE"
        )
