"""What each user took in training, for models that answer from it."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.batch import Jagged
from shoal.kernels.bags import sum_bags


class UserItems(nn.Module):
    """Every user's training items, each once: user u's are items[starts[u]:starts[u + 1]]."""

    starts: Tensor  # [num_users + 1]
    items: Tensor  # [pairs]
    weights: Tensor | None  # [pairs], of a pair that came more than once their sum; None: 1 each

    def __init__(
        self,
        users: Tensor,
        items: Tensor,
        num_users: int,
        num_items: int,
        weights: Tensor | None = None,
    ):
        super().__init__()
        self.num_items = num_items
        every = users.long() * num_items + items  # ids may come in 32 bits
        pairs = torch.unique(every)
        counts = torch.bincount(pairs // num_items, minlength=num_users)
        starts = F.pad(counts.cumsum(0), (1, 0))
        self.longest = int(counts.max())  # items of the user who took most
        if weights is not None:
            places = torch.searchsorted(pairs, every)
            weights = torch.zeros(len(pairs)).index_add_(0, places, weights)
        values = {"starts": starts, "items": pairs % num_items, "weights": weights}
        for name, value in values.items():
            self.register_buffer(name, value, persistent=False)  # the data makes it anew

    def lists(self, users: Tensor, most: int | None = None) -> Jagged:
        """The items of users [b], at most so many of each: b lists."""
        starts = self.starts[users]
        counts = self.starts[users + 1] - starts
        counts = counts if most is None else counts.clamp(max=most)
        offsets = F.pad(counts.cumsum(0), (1, 0))
        places = torch.arange(int(offsets[-1]), device=users.device)
        places = places + (starts - offsets[:-1]).repeat_interleave(counts)
        weights = None if self.weights is None else self.weights[places]
        return Jagged(self.items[places], offsets, weights)

    def matrix(self, users: Tensor) -> Tensor:
        """1 where a user took an item, else 0: [b] -> [b, num_items]."""
        if torch.compiler.is_exporting():  # a graph has no sizes that depend on values
            items = self.latest(users, self.longest)
            taken = torch.zeros(users.shape[0], self.num_items).scatter(1, items, 1.0)
            return taken * (torch.arange(self.num_items) > 0)  # 0 pads
        return multi_hot(self.lists(users), self.num_items)

    def latest(self, users: Tensor, count: int) -> Tensor:
        """At most `count` items of each user, 0 pads: [b] -> [b, count]."""
        column = torch.arange(count, device=users.device)
        starts, stops = self.starts[users].unsqueeze(1), self.starts[users + 1].unsqueeze(1)
        places = starts + column
        inside = places < stops
        items = self.items[places.clamp(max=max(0, len(self.items) - 1))]
        return torch.where(inside, items, 0)

    def holds(self, users: Tensor, items: Tensor) -> Tensor:
        """Whether a user took an item: two tensors of one shape -> bool of that shape."""
        if not len(self.items):
            return torch.zeros_like(users, dtype=torch.bool)
        pairs = self.owners * self.num_items + self.items  # ascending
        wanted = users * self.num_items + items
        place = torch.searchsorted(pairs, wanted).clamp(max=len(pairs) - 1)
        return pairs[place] == wanted

    @property
    def owners(self) -> Tensor:
        """The user of each pair: [pairs]."""
        return owners(Jagged(self.items, self.starts))

    def common(self, rows: int = 1 << 10) -> Iterator[tuple[int, Tensor]]:
        """How many users took both of two items, some items at a time: the number of the first
        one, float32 [rows, num_items]. With weights the sum of their products over these users.
        """
        num_users = len(self.starts) - 1
        users = self.owners
        weights = torch.ones(len(users)) if self.weights is None else self.weights
        items_by_user = sparse_matrix(users, self.items, weights, (num_users, self.num_items))
        order = self.items.argsort(stable=True)
        items, users, weights = self.items[order], users[order], weights[order]
        for first in range(0, self.num_items, rows):
            last = min(first + rows, self.num_items)
            a, b = torch.searchsorted(items, torch.tensor([first, last])).tolist()
            block = sparse_matrix(
                items[a:b] - first, users[a:b], weights[a:b], (last - first, num_users)
            )
            yield first, sparse_product(block, items_by_user)


def sparse_matrix(rows: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """A sparse matrix of values at places in ascending order."""
    return torch.sparse_coo_tensor(
        torch.stack([rows, columns]),
        values,
        size,
        is_coalesced=True,
        check_invariants=True,
    )


def sparse_product(left: Tensor, right: Tensor) -> Tensor:
    """The product of two sparse matrices, dense."""
    with warnings.catch_warnings():  # torch announces a beta state of sparse products
        warnings.simplefilter("ignore")
        return torch.sparse.mm(left, right).to_dense()


def nearest(
    taken: UserItems, k: int, shrink: float, similarity: str = "cosine"
) -> Iterator[tuple[Tensor, Tensor]]:
    """The k items most alike to each one, some items at a time: values [b, k], items.

    similarity: cosine; dot: the divisor is left out.
    """
    squares = None if taken.weights is None else taken.weights.square()
    sizes = torch.bincount(taken.items, squares, minlength=taken.num_items).float().sqrt()
    for first, common in taken.common():
        own = torch.arange(first, first + len(common))
        alike = common
        if similarity == "cosine":
            alike = common / (sizes[own].unsqueeze(1) * sizes + shrink + 1e-6)
        alike[torch.arange(len(own)), own] = 0.0
        yield alike.topk(min(k, taken.num_items), dim=1)


def owners(lists: Jagged) -> Tensor:
    """The list that each value stands in: [total]."""
    numbers = torch.arange(len(lists), device=lists.values.device)
    return numbers.repeat_interleave(lists.lengths)


def summed(x: Tensor, lists: Jagged) -> Tensor:
    """The sum of the rows that each list names, without gradient: [n, d] -> [lists, d]."""
    return sum_bags(x, lists.offsets, lists.values)


def even(lists: Jagged) -> Tensor:
    """Weights of a list's values, equal and of length 1 together: [total]."""
    return lists.lengths.clamp(min=1).float().rsqrt()[owners(lists)]


def taken_by_users(facts: Any) -> UserItems:
    """The items of every user in training, with their weights."""
    return UserItems(
        facts.train_users,
        facts.train_items,
        facts.num_users,
        facts.num_items,
        facts.train_weights,
    )


def takers_of_items(facts: Any) -> UserItems:
    """The users of every item in training, with their weights: as if items were the users."""
    return UserItems(
        facts.train_items,
        facts.train_users,
        facts.num_items,
        facts.num_users,
        facts.train_weights,
    )


def multi_hot(lists: Jagged, width: int) -> Tensor:
    """1 where a list has a value: [lists, width], float32."""
    vectors = torch.zeros(len(lists), width, device=lists.values.device)
    vectors[owners(lists), lists.values] = 1.0
    return vectors
