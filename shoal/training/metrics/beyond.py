"""Metrics of something else than accuracy: how new, surprising, various, fair lists are.

Definitions and the peers whose values they equal are in docs/reference/metrics.md.
"""

import numpy as np
import torch
from torch import Tensor

from shoal.training.metrics.base import Metric, PerUser, Ranking, Setting, State, expand
from shoal.training.metrics.definitions import NDCG


class Novelty(PerUser):
    """Mean self-information of the items: -log2 of their share of the training interactions."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        counts = setting.popularity
        self.bits = -(counts.clamp(min=1) / counts.sum()).log2()  # an unseen item: as if seen once
        self.bits[0] = 0

    def value(self, ranking: Ranking) -> Tensor:
        return self.bits[ranking.items] @ ranking.within / ranking.length_at


class Serendipity(PerUser):
    """Mean over the list of how much higher a hit stands than its popularity would put it."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        counts = setting.popularity
        different = counts[counts > 0].unique()  # items of equal counts have one rank
        rank = len(different) - torch.searchsorted(different, counts)
        self.num_items = len(counts) - 1
        self.popular = torch.where(counts > 0, self._worth(rank), 0.0)

    def _worth(self, rank: Tensor) -> Tensor:
        return (self.num_items + 1 - rank).double() / self.num_items

    def value(self, ranking: Ranking) -> Tensor:
        above = (self._worth(ranking.ranks) - self.popular[ranking.items]).clamp(min=0)
        return (above * ranking.hits) @ ranking.within / ranking.length_at


class Personalisation(Metric):
    """1 - mean cosine similarity of two users' lists.

    The sum over all pairs is that of the squares of what items have of all lists.
    """

    needs = "ranked"
    has_topk = True

    def measure(self, block: Ranking) -> State:
        shares = torch.zeros(len(block.topk), block.num_items, dtype=torch.float64)
        for place_of_k, k in enumerate(block.topk.tolist()):
            items = block.items[:, :k]
            weights = block.length_at[:, place_of_k, None].rsqrt().expand_as(items)
            shares[place_of_k].index_add_(0, items.reshape(-1), weights.reshape(-1))
        shares[:, 0] = 0
        return {self.part: shares}

    def compute(self, state: State) -> Tensor:
        users = state["users"]
        others = state[self.part].square().sum(dim=1) - users  # a list is like itself
        return 1 - others / (users * (users - 1))  # nan where there is one user


class IntraListDiversity(PerUser):
    """1 - mean cosine similarity of the groups of two items of a list; 0 for lists of one item."""

    reads_groups = "item"

    def value(self, ranking: Ranking) -> Tensor:
        row, rank, group, count = ranking.item_groups
        users, groups = len(ranking.items), ranking.groups.num_items
        keys, place = np.unique(row * groups + group, return_inverse=True)
        similar_pairs = torch.zeros(users, len(ranking.topk), dtype=torch.float64)
        for place_of_k, k in enumerate(ranking.topk.tolist()):
            within = rank <= k
            # Vectors of length 1: the sum over pairs is in the square of their sum.
            sums = np.bincount(place, within / np.sqrt(count), minlength=len(keys))
            squares = np.bincount(keys // groups, sums**2, minlength=users)
            items_with_group = np.bincount(row, within / count, minlength=users)
            similar_pairs[:, place_of_k] = torch.from_numpy(squares - items_with_group)
        pairs = ranking.length_at * (ranking.length_at - 1)
        return torch.where(pairs > 0, 1 - similar_pairs / pairs.clamp(min=1), 0.0)


class Miscalibration(Metric):
    """How far the groups of a list are from those of the user's history: Kullback-Leibler.

    Users whose history has no group are left out.
    """

    needs = "ranked"
    has_topk = True
    higher_is_better = False
    reads_groups = "item"
    smoothing = 0.01  # the share of the history in the list, so that the logarithm is finite

    def of_each(self, block: Ranking) -> Tensor:
        """nan where a user's history has no group."""
        groups, history = block.groups, block.groups.history
        assert history is not None
        owner, items = expand(history, block.users)
        keys, history_shares = self._shares(owner, *groups.of_items(items), len(block.users))
        row, rank, group, count = block.item_groups
        divergences = torch.full(
            (len(block.users), len(block.topk)), torch.nan, dtype=torch.float64
        )
        has_group = torch.from_numpy(np.unique(keys // groups.num_items))
        for place_of_k, k in enumerate(block.topk.tolist()):
            within = np.flatnonzero(rank <= k)
            list_keys, shares = self._shares(
                row[within], np.arange(len(within)), group[within], count[within], len(block.users)
            )
            at_keys = np.minimum(np.searchsorted(list_keys, keys), max(len(list_keys) - 1, 0))
            list_shares = np.zeros(len(keys))
            if len(list_keys):
                list_shares = np.where(list_keys[at_keys] == keys, shares[at_keys], 0.0)
            mixed = (1 - self.smoothing) * list_shares + self.smoothing * history_shares
            terms = history_shares * np.log(history_shares / mixed)
            sums = np.bincount(keys // groups.num_items, terms, minlength=len(block.users))
            # Sums are whole numbers where there are no terms.
            divergences[has_group, place_of_k] = torch.from_numpy(sums).double()[has_group]
        return divergences

    def _shares(
        self,
        owner: np.ndarray,
        place: np.ndarray,
        group: np.ndarray,
        count: np.ndarray,
        users: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Keys row * groups + group, ascending, and the share of the group among the row's items.

        owner: the row of each item. An item of several groups counts for each in part.
        """
        groups = self.setting.groups.num_items
        row = owner[place]
        keys, places = np.unique(row * groups + group, return_inverse=True)
        sums = np.bincount(places, 1 / count, minlength=len(keys))
        whole = np.bincount(row, 1 / count, minlength=users)
        return keys, sums / whole[keys // groups]

    def measure(self, block: Ranking) -> State:
        values = self.of_each(block)
        is_defined = (~values.isnan()).all(1)
        return {self.part: values[is_defined].sum(dim=0), f"{self.part}.users": is_defined.sum()}

    def compute(self, state: State) -> Tensor:
        return state[self.part] / state[f"{self.part}.users"]


class UserGap(Metric):
    """Mean over pairs of groups of users of how far their mean NDCG differs."""

    needs = "ranked"
    has_topk = True
    higher_is_better = False
    reads_groups = "user"

    def measure(self, block: Ranking) -> State:
        assert block.groups.users is not None
        group = torch.from_numpy(block.groups.users[block.users])
        values = NDCG(self.setting).value(block)
        sums = torch.zeros(block.groups.num_users, values.shape[1], dtype=torch.float64)
        counts = torch.bincount(group, minlength=len(sums))
        return {self.part: sums.index_add_(0, group, values), f"{self.part}.users": counts}

    def compute(self, state: State) -> Tensor:
        sums, counts = state[self.part][1:], state[f"{self.part}.users"][1:]
        means = (sums[counts > 0] / counts[counts > 0, None]).sort(dim=0).values
        n = torch.tensor(len(means))
        signs = 2 * torch.arange(1, len(means) + 1) - n - 1  # how often each is a pair's larger one
        return (means * signs[:, None]).sum(dim=0) / (n * (n - 1) / 2)  # nan where n is 1


class ItemGap(Metric):
    """Spread over groups of items of the chance to be recommended: deviation / mean.

    The chance of a group: its places in lists / its items that users had not taken in training.
    """

    needs = "ranked"
    has_topk = True
    higher_is_better = False
    reads_groups = "item"

    def measure(self, block: Ranking) -> State:
        groups, (_, rank, group, _) = block.groups, block.item_groups
        assert groups.items is not None and groups.history is not None
        size = groups.num_items
        recommended = [np.bincount(group[rank <= k], minlength=size) for k in block.topk.tolist()]
        history_groups = groups.of_items(expand(groups.history, block.users)[1])[1]
        free = np.bincount(groups.items.values, minlength=size) * len(block.users)
        free -= np.bincount(history_groups, minlength=size)
        return {
            self.part: torch.from_numpy(np.stack(recommended)),
            f"{self.part}.free": torch.from_numpy(free),
        }

    def compute(self, state: State) -> Tensor:
        recommended, free = state[self.part][:, 1:], state[f"{self.part}.free"][1:]
        chance = recommended[:, free > 0] / free[free > 0].double()
        return chance.std(dim=1, correction=0) / chance.mean(dim=1)
