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
import torch.nn.functional as F
from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.models.base import Facts, Retrieval
from shoal.models.folding import EquationsFolding
from shoal.models.nn.closed_form import Progress, ThreadTeam, expect_solution
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
        _, self.items = alternate(self.options, by_user, by_item, users, items)

    def fold_in(self, lists: Jagged) -> Tensor:
        """Vectors of users by what they took, known or new: b lists of items -> [b, d]."""
        num_items, width = self.items.shape
        by_length = ListsByLength(lists, num_items, width)
        return solve(self.options, by_length, self.items)

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
            beyond=_beyond(options, weights),
        )


def solved_terms(
    items: Tensor,
    taken: Tensor,
    item: Tensor,
    alpha: float,
    reg_weight: float,
    nu: float,
    weights: Tensor | None = None,
    beyond: Tensor | None = None,
) -> Tensor:
    """<item, x> with x = (all pairs + reg + Y^T Y)^-1 Y^T 1 as a sum over the rows of Y: [taken].

    items: vectors [n, d]. weights, and what they have `beyond` that of all pairs: [taken], of ones.
    """
    items = items.double()
    rows = items[taken]
    inner = rows if beyond is None else rows * beyond.unsqueeze(1)
    square = alpha * (items.T @ items) + inner.T @ rows
    square.diagonal().add_(reg_weight * (len(taken) + alpha * len(items)) ** nu)
    terms = rows @ torch.linalg.solve(square, items[item])
    return terms if weights is None else weights * terms


class ListsByLength:
    """Lists of what was taken, those of about the same length side by side in one tensor."""

    def __init__(self, lists: Jagged, pad: int, width: int):
        """pad: the id behind the end of a list; width: of the vectors that ids stand for."""
        # The vectors of a batch are read again and again: on a CPU they stay in a core's cache.
        most_ids = (1 << 18) // width if lists.values.device.type == "cpu" else 1 << 14
        self.lengths = lists.lengths
        self.order = self.lengths.argsort()  # the shortest first
        self.batches: list[Tensor] = []  # in that order: ids [b, longest]
        self.starts: list[int] = []  # in that order: where each batch begins
        self.weights: list[Tensor] | None = None if lists.weights is None else []  # of the ids
        sizes = self.lengths[self.order].tolist()
        start = 0
        while start < len(sizes):
            stop = start + 1  # at most 1024 lists and, if they are several, most_ids
            most = min(len(sizes), start + 1024)
            while stop < most and (stop + 1 - start) * sizes[stop] <= most_ids:
                stop += 1
            list_ids, column = self.order[start:stop], torch.arange(sizes[stop - 1])
            column = column.to(list_ids.device)
            inside = column < self.lengths[list_ids].unsqueeze(1)
            places = torch.where(inside, lists.offsets[list_ids].unsqueeze(1) + column, 0)
            ids = torch.where(inside, lists.values[places], pad) if len(column) else places
            self.batches.append(ids)
            self.starts.append(start)
            if self.weights is not None:
                assert lists.weights is not None
                self.weights.append(lists.weights[places] if len(column) else places.float())
            start = stop


def alternate(
    options: IALS.Options,
    by_user: ListsByLength,
    by_item: ListsByLength,
    users: Tensor,
    items: Tensor,
) -> tuple[Tensor, Tensor]:
    """Solve for users and for items in turn, `options.epochs` times, from vectors of both."""
    progress = Progress("IALS", options.epochs)
    with ThreadTeam() as workers:
        for epoch in range(options.epochs):
            users = solve(options, by_user, items, users, workers)
            items = solve(options, by_item, users, items, workers)
            progress(epoch + 1)
    return users, items


def solve(
    options: IALS.Options,
    lists: ListsByLength,
    others: Tensor,
    last: Tensor | None = None,
    workers: ThreadTeam | None = None,
) -> Tensor:
    """argmin of the loss for each list of what was taken, given vectors [n, d]: [lists, d].

    last: vectors [lists, d] that conjugate gradients start from; without them it is exact.
    workers: threads to use; left out, as many as torch has.

    All is computed along the eigenvectors of the matrix of all pairs: with Y the l rows of a list,
    its equations are (diagonal + Y^T Y) x = Y^T 1, of d unknowns. Where l < d, l unknowns do:

        x = diagonal^-1 Y^T z        (1 + Y diagonal^-1 Y^T) z = 1

    With weights the equations are (diagonal + Y^T (w - what `diagonal` has of them) Y) x = Y^T w.
    """
    if workers is None:
        with ThreadTeam(None if others.device.type == "cpu" else 1) as workers:
            return solve(options, lists, others, last, workers)
    eigenvalues, basis = torch.linalg.eigh(options.alpha * _squares(others, workers))
    count = lists.lengths[lists.order] + options.alpha * len(others)
    reg = options.reg_weight * count.to(others.dtype) ** options.nu
    diagonal = eigenvalues.clamp(min=0.0) + reg.unsqueeze(1)  # [lists, d], in their order
    turned = others.new_zeros(len(others) + 1, others.shape[1])  # the last row is behind every list

    def turn(rows: slice) -> None:
        torch.mm(others[rows], basis, out=turned[rows])

    workers.each(turn, _slices(len(others)))
    solved = others.new_empty(len(lists.order), others.shape[1])

    def solve_batch(number: int) -> None:
        ids, start = lists.batches[number], lists.starts[number]
        own, places = diagonal[start : start + len(ids)], lists.order[start : start + len(ids)]
        rows = F.embedding(ids, turned)  # [b, l, d]
        weights = rows.new_ones(ids.shape) if lists.weights is None else lists.weights[number]
        beyond = _beyond(options, weights)
        if last is not None and options.solver == "cg":
            begin = last.index_select(0, places) @ basis
            begin *= (lists.lengths[places] > 0).unsqueeze(1)  # an empty list has the answer 0
            solution = _descend(begin, rows, own, options.cg_steps, weights, beyond)
        elif lists.weights is None and options.alpha_of == "all" and rows.shape[1] < rows.shape[2]:
            solution = _short(rows, own)
        else:
            solution = _long(rows, own, weights, beyond)
        solved[places] = solution @ basis.T

    workers.each(solve_batch, range(len(lists.batches)))
    return solved


def _slices(count: int, rows: int = 1 << 13) -> list[slice]:
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]


def _squares(vectors: Tensor, workers: ThreadTeam) -> Tensor:
    """V^T V of vectors [n, d], added up in an order that does not depend on the threads."""
    slices = _slices(len(vectors))
    parts = vectors.new_zeros(len(slices), vectors.shape[1], vectors.shape[1])

    def multiply(number: int) -> None:
        rows = vectors[slices[number]]
        torch.mm(rows.T, rows, out=parts[number])

    workers.each(multiply, range(len(slices)))
    return parts.sum(0)


def _beyond(options: IALS.Options, weights: Tensor) -> Tensor:
    """What the weights of pairs that were taken have beyond the weight of all pairs."""
    return weights if options.alpha_of == "all" else weights - options.alpha


def _short(rows: Tensor, diagonal: Tensor) -> Tensor:
    """Solves the equations of lists with rows [b, l, d], l < d, by l unknowns: [b, d]."""
    scaled = rows / diagonal.unsqueeze(1)
    left = torch.bmm(scaled, rows.transpose(1, 2))
    left.diagonal(dim1=1, dim2=2).add_(1.0)
    ones = rows.new_ones(len(rows), rows.shape[1], 1)
    inner = torch.cholesky_solve(ones, torch.linalg.cholesky(left))
    return torch.bmm(inner.transpose(1, 2), scaled).squeeze(1)


def _long(rows: Tensor, diagonal: Tensor, weights: Tensor, beyond: Tensor) -> Tensor:
    """Solves the equations of lists with rows [b, l, d] by their matrices [d, d]: [b, d]."""
    left = torch.bmm((rows * beyond.unsqueeze(2)).transpose(1, 2), rows)
    left.diagonal(dim1=1, dim2=2).add_(diagonal)
    right = torch.bmm(weights.unsqueeze(1), rows).transpose(1, 2)
    return torch.cholesky_solve(right, torch.linalg.cholesky(left)).squeeze(2)


def _descend(
    x: Tensor, rows: Tensor, diagonal: Tensor, steps: int, weights: Tensor, beyond: Tensor
) -> Tensor:
    """Solves the equations of `_long` by conjugate gradients from x [b, d]: [b, d].

    No matrix is made for a list.
    """

    def scores(p: Tensor) -> Tensor:
        return torch.bmm(rows, p.unsqueeze(2)).squeeze(2)

    def summed(weights: Tensor) -> Tensor:
        return torch.bmm(weights.unsqueeze(1), rows).squeeze(1)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.vecdot(a, b).unsqueeze(1)

    tiny = 1e-30  # what is solved already stays: 0 / tiny
    rest = summed(weights - beyond * scores(x))  # rows of zeros: any weight
    rest.addcmul_(diagonal, x, value=-1)
    direction, size = rest, dot(rest, rest)
    for _ in range(steps):
        product = summed(beyond * scores(direction)).addcmul_(diagonal, direction)
        stride = size / dot(direction, product).clamp(min=tiny)
        x = torch.addcmul(x, stride, direction)
        rest = torch.addcmul(rest, stride, product, value=-1)
        before, size = size, dot(rest, rest)
        direction = torch.addcmul(rest, size / before.clamp(min=tiny), direction)
    return x
