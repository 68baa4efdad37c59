"""iALS: Collaborative Filtering for Implicit Feedback Datasets, Hu et al., ICDM 2008; in the form
of Revisiting the Performance of iALS on Item Recommendation Benchmarks, Rendle et al., RecSys 2022.

    loss = sum over taken of w (<u, i> - 1)^2 + alpha * sum over all pairs of <u, i>^2
           + reg * sum of (taken + alpha * others)^nu |vector|^2

w is 1, or what data.sample_weight says. With alpha_of=others the second sum is over the pairs that
were not taken, as in the paper of 2008.

Users and items are solved for in turn. A user's vector is a function of the user's items and the
items' vectors, so users are never stored: a new one is folded in like any other.
"""

from typing import Literal

import torch
from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.models.base import Facts, Retrieval
from shoal.models.folding import EquationsFolding
from shoal.models.nn.closed_form import Progress, ThreadTeam, expect_solution
from shoal.models.nn.least_squares import LeastSquares, ListsByLength, solve, solved_terms
from shoal.models.nn.user_items import taken_by_users, takers_of_items
from shoal.models.options import Count, NotNegative, Positive


class IALS(Retrieval):
    """Implicit alternating least squares."""

    trainable = False
    reads_weights = True
    items: Tensor  # [num_items, d]

    class Options(Retrieval.Options):
        embedding_size: int = 64
        epochs: Count = 16
        alpha: NotNegative = 0.1  # weight of every pair, beside 1 of those taken
        # pairs that alpha weighs: all pairs, or the ones not taken
        alpha_of: Literal["all", "others"] = "all"
        reg_weight: Positive = 0.01
        # exponent by which the penalty grows with the number of pairs of a user or item; 0: equal
        nu: float = 1.0
        # cholesky: exact; cg: a few steps of conjugate gradients from the last vectors
        solver: Literal["cholesky", "cg"] = "cholesky"
        cg_steps: Count = 3  # steps of conjugate gradients, for each vector in each epoch

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.taken = taken_by_users(facts)
        expect_solution(self, "items", facts.num_items, options.embedding_size)

    @property
    def problem(self) -> LeastSquares:
        """What is solved for each user and each item."""
        options = self.options
        return LeastSquares(
            alpha=options.alpha,
            reg_weight=options.reg_weight,
            nu=options.nu,
            alpha_others=options.alpha_of == "others",
            cg_steps=options.cg_steps if options.solver == "cg" else None,
        )

    def solve(self) -> None:
        facts, width = self.facts, self.options.embedding_size
        taken = self.taken
        takers = takers_of_items(facts)
        by_user = ListsByLength(
            Jagged(taken.items, taken.starts, taken.weights), facts.num_items, width
        )
        by_item = ListsByLength(
            Jagged(takers.items, takers.starts, takers.weights), facts.num_users, width
        )
        items = torch.randn(facts.num_items, width)
        items *= 0.1 / width**0.5
        users = torch.zeros(facts.num_users, width)
        epochs = self.options.epochs
        _, self.items = alternate(self.problem, epochs, by_user, by_item, users, items)

    def fold_in(self, lists: Jagged) -> Tensor:
        """Vectors of users by what they took, known or new: b lists of items -> [b, d]."""
        num_items, width = self.items.shape
        by_length = ListsByLength(lists, num_items, width)
        return solve(self.problem, by_length, self.items)

    def folding(self) -> EquationsFolding:
        options = self.options
        return EquationsFolding(
            alpha=options.alpha,
            reg_weight=options.reg_weight,
            nu=options.nu,
            alpha_others=options.alpha_of == "others",
        )

    def encode_query(self, batch: Batch) -> Tensor:
        return self.fold_in(self.taken.lists(batch.tensor(self.facts.user_field)))

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.items[ids]

    def terms(self, user: Tensor, taken: Tensor, item: Tensor) -> Tensor:
        options = self.options
        weights, own = self.items.new_ones(len(self.items)), self.taken.lists(user.view(1))
        if own.weights is not None:
            weights[own.values] = own.weights
        weights = weights[taken].double()
        return solved_terms(
            self.items,
            taken,
            item,
            alpha=options.alpha,
            reg_weight=options.reg_weight,
            nu=options.nu,
            weights=weights,
            beyond=self.problem.beyond(weights),
        )


def alternate(
    problem: LeastSquares,
    epochs: int,
    by_user: ListsByLength,
    by_item: ListsByLength,
    users: Tensor,
    items: Tensor,
) -> tuple[Tensor, Tensor]:
    """Solve for users and for items in turn, `epochs` times, from vectors of both."""
    progress = Progress("IALS", epochs)
    with ThreadTeam() as workers:
        for epoch in range(epochs):
            users = solve(problem, by_user, items, users, workers)
            items = solve(problem, by_item, users, items, workers)
            progress(epoch + 1)
    return users, items
