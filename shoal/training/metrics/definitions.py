"""What each metric is: its state, and the value of a state.

Definitions, and where they differ from those of other tools, are in docs/reference/metrics.md.
Metrics of something else than accuracy are in beyond.py.
"""

import numpy as np
import torch
from torch import Tensor

from shoal.training.metrics.base import (
    ROWS,
    Metric,
    OverItems,
    PerRow,
    PerUser,
    Ranking,
    State,
    Valued,
)
from shoal.training.metrics.pairs import pair_counts


class Recall(PerUser):
    """Hits among the first k / positives."""

    def value(self, ranking: Ranking) -> Tensor:
        return ranking.hits_at / ranking.num_positives


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


class Hit(PerUser):
    """1 if there is a hit among the first k."""

    def value(self, ranking: Ranking) -> Tensor:
        return (ranking.hits_at > 0).double()


class MAP(PerUser):
    """Sum of the precision at each hit among the first k / min(positives, k)."""

    def value(self, ranking: Ranking) -> Tensor:
        at_hits = ranking.hits.cumsum(dim=1) / ranking.ranks * ranking.hits
        return at_hits @ ranking.within / torch.minimum(ranking.num_positives, ranking.topk)


class Precision(PerUser):
    """Hits among the first k / k."""

    def value(self, ranking: Ranking) -> Tensor:
        return ranking.hits_at / ranking.topk


class RBP(PerUser):
    """Rank-biased precision: hits, each worth `patience` times the place before; at most 1."""

    patience = 0.85  # of a reader who looks at the next place

    def value(self, ranking: Ranking) -> Tensor:
        worth = (1 - self.patience) * self.patience ** (ranking.ranks - 1)
        return ranking.hits * worth @ ranking.within


class ItemCoverage(OverItems):
    """Share of the items that are recommended to anyone."""

    def value(self, counts: Tensor) -> Tensor:
        return (counts > 0).double().mean(dim=1)


class AveragePopularity(PerUser):
    """Mean number of training interactions of the recommended items."""

    higher_is_better = False

    def value(self, ranking: Ranking) -> Tensor:
        return self.setting.popularity[ranking.items] @ ranking.within / ranking.length_at


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


class TailPercentage(PerUser):
    """Share of the recommended items that belong to the tail."""

    def value(self, ranking: Ranking) -> Tensor:
        return self.setting.tail[ranking.items].double() @ ranking.within / ranking.length_at


class MedRank(Metric):
    """Median over users of the rank of their best positive among all candidates."""

    needs = "ranked"
    higher_is_better = False
    wants_pairs = True

    def measure(self, block: Ranking) -> State:
        return {"first_ranks": self.of_each(block).squeeze(1)}

    def compute(self, state: State) -> Tensor:
        return torch.tensor(np.median(state["first_ranks"].numpy()))

    def of_each(self, block: Ranking) -> Tensor:
        assert block.block.first_rank is not None, "wants_auc_pairs was True"
        return block.block.first_rank[:, None]


class GAUC(Metric):
    """Mean of the users' AUC, weighted by their positives; users of one class are left out.

    From Ranked blocks over all candidates of a user; where there are none, from labeled rows.
    """

    needs = "either"
    wants_pairs = True

    def measure(self, block: Ranking | Valued) -> State:
        if isinstance(block, Valued):
            _check_binary(block.labels, type(self).__name__)
            rows = {"row_scores": block.scores, "row_labels": block.labels}
            return {"row_users": block.users, **rows}
        return self._sums(*_pairs(block))

    def compute(self, state: State) -> Tensor:
        if not state["users"]:
            state = self._sums(*pair_counts(*(state[part] for part in ROWS)))
        return state[self.part] / state[f"{self.part}.weight"]

    def of_each(self, block: Ranking) -> Tensor:
        """AUC; nan where a user has one class alone."""
        numerator, positives, negatives = _pairs(block)
        return (numerator.double() / (positives * negatives))[:, None]

    def weights(self, positives: Tensor) -> Tensor:
        """How much users count, [u]."""
        return positives

    def _sums(self, numerator: Tensor, positives: Tensor, negatives: Tensor) -> State:
        has_both = (positives > 0) & (negatives > 0)
        auc = numerator[has_both].double() / (positives[has_both] * negatives[has_both])
        weights = self.weights(positives[has_both])
        return {self.part: (auc * weights).sum(), f"{self.part}.weight": weights.sum()}


class UAUC(GAUC):
    """Mean of the users' AUC, all alike; users of one class are left out."""

    def weights(self, positives: Tensor) -> Tensor:
        return torch.ones_like(positives)


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
    best_at = 1.0

    def measure(self, block: Valued) -> State:
        return {"predicted": block.scores.sum(), "observed": block.labels.sum()}

    def compute(self, state: State) -> Tensor:
        return state["predicted"] / state["observed"]  # inf or nan without clicks


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


def _pairs(ranking: Ranking) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs in the right order, positives and negatives of each user."""
    block = ranking.block
    assert block.auc_numerator is not None and block.num_negatives is not None, "wants_pairs"
    return block.auc_numerator, block.num_positives, block.num_negatives


def _check_binary(labels: Tensor, name: str) -> None:
    odd = (labels != 0) & (labels != 1)
    if odd.any():
        raise ValueError(
            f"{name} needs labels that are 0 or 1, got {labels[odd][0].item():g}; turn ratings "
            "into labels with data.threshold, or use MAE and RMSE"
        )
