"""Least squares: for lists of what was taken, the vectors x that are best for n given vectors y.

    loss(x) = sum over taken of w (<x, y> - 1)^2 + alpha * sum over all y of <x, y>^2
              + reg_weight * (taken + alpha * n)^nu |x|^2

Lists of about the same length are solved side by side.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.models.nn.closed_form import ThreadTeam


@dataclass(frozen=True)
class LeastSquares:
    """The weights of the loss, and how it is solved.

    alpha_others  alpha weighs those that were not taken, instead of all
    cg_steps      steps of conjugate gradients from the last vectors; None: exact, by Cholesky
    """

    alpha: float
    reg_weight: float
    nu: float
    alpha_others: bool = False
    cg_steps: int | None = None

    def beyond(self, weights: Tensor) -> Tensor:
        """What the weights of pairs that were taken have beyond the weight of all pairs."""
        return weights - self.alpha if self.alpha_others else weights


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


def solve(
    problem: LeastSquares,
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
            return solve(problem, lists, others, last, workers)
    eigenvalues, basis = torch.linalg.eigh(problem.alpha * _squares(others, workers))
    count = lists.lengths[lists.order] + problem.alpha * len(others)
    reg = problem.reg_weight * count.to(others.dtype) ** problem.nu
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
        beyond = problem.beyond(weights)
        if last is not None and problem.cg_steps is not None:
            begin = last.index_select(0, places) @ basis
            begin *= (lists.lengths[places] > 0).unsqueeze(1)  # an empty list has the answer 0
            solution = _descend(begin, rows, own, problem.cg_steps, weights, beyond)
        elif lists.weights is None and not problem.alpha_others and rows.shape[1] < rows.shape[2]:
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
