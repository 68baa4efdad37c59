"""Ranking within a tile of users, block of items by block of items."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.training.evaluation.phases import Lists, PhaseData


class PairCounts:
    """For GAUC: how many negatives each positive of a tile beats. First pass finds the scores of
    the positives, second pass counts against every block."""

    def __init__(self, data: PhaseData, a: int, b: int, device: torch.device):
        rows, items = data.positives.block(a, b)
        self.rows, self.items = (
            torch.from_numpy(rows).to(device),
            torch.from_numpy(items).to(device),
        )
        self.size, self.device = b - a, device
        self.scores = torch.full((len(rows),), -torch.inf, device=device)
        self.below = torch.zeros(len(rows), dtype=torch.float64, device=device)
        self.candidates = torch.zeros(b - a, dtype=torch.int64, device=device)

    def find(self, scores: Tensor, start: int) -> None:
        inside = (self.items >= start) & (self.items < start + scores.shape[1])
        self.scores[inside] = scores[self.rows[inside], self.items[inside] - start]

    def count(self, scores: Tensor) -> None:
        ascending = scores.sort(dim=1).values
        excluded = (scores == -torch.inf).sum(1)
        self.candidates += scores.shape[1] - excluded
        # Positives side by side, one row of thresholds per user.
        grid, column = self._grid(self.scores)
        less = torch.searchsorted(ascending, grid, side="left")[self.rows, column]
        upto = torch.searchsorted(ascending, grid, side="right")[self.rows, column]
        self.below += (less + upto).double() / 2 - excluded[self.rows]

    def _grid(self, values: Tensor) -> tuple[Tensor, Tensor]:
        counts = torch.bincount(self.rows, minlength=self.size)
        first = counts.cumsum(0) - counts
        column = torch.arange(len(values), device=self.device) - first[self.rows]
        grid = torch.zeros(self.size, int(counts.max()) if len(counts) else 0, device=self.device)
        grid[self.rows, column] = values
        return grid, column

    def result(self) -> tuple[Tensor, Tensor]:
        """Pairs won [b] and negatives [b]. Pairs among the positives themselves are taken out."""
        grid, column = self._grid(self.scores)
        real = torch.zeros_like(grid, dtype=torch.bool)
        real[self.rows, column] = True
        reachable = real & (grid > -torch.inf)  # a positive of the history is no candidate
        counts = reachable.sum(1)
        wins = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        found = self.scores > -torch.inf
        wins.index_add_(0, self.rows[found], self.below[found])
        # m positives among themselves (each also meets itself) win m*m / 2 half-pairs altogether.
        return (wins - counts.double() ** 2 / 2).cpu(), (self.candidates - counts).cpu()


def mask(scores: Tensor, masked: Lists, a: int, b: int, start: int) -> None:
    """Exclude the padding item and the `masked` items of each user, in place."""
    if start == 0:
        scores[:, 0] = -torch.inf
    rows, items = masked.block(a, b)
    if start or scores.shape[1] <= int(items.max(initial=0)):
        inside = (items >= start) & (items < start + scores.shape[1])
        rows, items = rows[inside], items[inside]
    if len(rows):
        flat = torch.from_numpy(rows * scores.shape[1] + items - start).to(scores.device)
        scores.view(-1)[flat] = -torch.inf
