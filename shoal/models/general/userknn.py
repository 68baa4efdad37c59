"""UserKNN: GroupLens: An Open Architecture for Collaborative Filtering of Netnews, Resnick et al.,
CSCW 1994, with cosine on what was taken.

    score(user, item) = sum of cos(user, v) over the k nearest users v that took the item
"""

import torch
from torch import Tensor

from shoal.data.batch import Batch
from shoal.models.base import Facts, Model
from shoal.models.nn.closed_form import expect_solution
from shoal.models.nn.user_items import UserItems, nearest, owners
from shoal.models.options import Count, NotNegative


class UserKNN(Model):
    """Neighbourhoods of users by cosine."""

    trainable = False
    neighbours: Tensor  # [num_users, k]
    alike: Tensor  # [num_users, k]
    pairs: Tensor  # user * num_items + item of all that was taken, ascending

    class Options(Model.Options):
        k: Count = 100
        shrink: NotNegative = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.taken = UserItems(
            facts.train_users, facts.train_items, facts.num_users, facts.num_items
        )
        owner = owners(self.taken.lists(torch.arange(facts.num_users)))
        pairs = owner * facts.num_items + self.taken.items
        self.register_buffer("pairs", pairs, persistent=False)
        count = min(options.k, facts.num_users)
        expect_solution(self, "alike", facts.num_users, count)
        expect_solution(self, "neighbours", facts.num_users, count, dtype=torch.int64)

    def solve(self) -> None:
        facts = self.facts
        takers = UserItems(facts.train_items, facts.train_users, facts.num_items, facts.num_users)
        blocks = list(nearest(takers, self.options.k, self.options.shrink))
        self.alike = torch.cat([values for values, _ in blocks])
        self.neighbours = torch.cat([index for _, index in blocks])

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        users = batch.tensor(self.facts.user_field)
        if torch.compiler.is_exporting():  # a graph has no sizes that depend on values
            wanted = self.neighbours[users].unsqueeze(1) * self.facts.num_items
            wanted = wanted + items.unsqueeze(-1)  # [b, n, k]
            place = torch.searchsorted(self.pairs, wanted).clamp(max=self.pairs.shape[0] - 1)
            return (self.alike[users].unsqueeze(1) * (self.pairs[place] == wanted)).sum(2)
        near, weights = self.neighbours[users], self.alike[users].reshape(-1)  # [b, k]
        lists = self.taken.lists(near.reshape(-1))
        owner = owners(lists)
        places = (owner // near.shape[1]) * self.facts.num_items + lists.values
        scores = torch.zeros(len(users) * self.facts.num_items, device=users.device)
        scores.index_add_(0, places, weights[owner])
        scores = scores.view(len(users), self.facts.num_items)
        return scores[:, items] if items.dim() == 1 else scores.gather(1, items)

    def terms(self, user: Tensor, taken: Tensor, item: Tensor) -> Tensor:
        """A neighbour is alike because of the items that both took, to equal parts."""
        neighbours_items = self.taken.matrix(self.neighbours[user])  # [k, num_items]
        common = neighbours_items[:, taken]  # [k, n]
        each = self.alike[user] / common.sum(1).clamp(min=1.0)
        return (each * neighbours_items[:, item]) @ common
