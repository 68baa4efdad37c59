"""Pairs of a positive and a negative item that a ranking has in order, over blocks of items."""

import torch
from torch import Tensor

from shoal.training.evaluation.splits import SplitData


class PairCounts:
    """How many negatives each positive of a tile beats: for GAUC, UAUC and MedRank.

    The first pass finds the scores of the positives, the second counts against every block.
    """

    def __init__(self, data: SplitData, a: int, b: int, device: torch.device):
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

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs won [b], negatives [b], rank of the best positive [b].

        Pairs among the positives themselves are taken out.
        """
        grid, column = self._grid(self.scores)
        real = torch.zeros_like(grid, dtype=torch.bool)
        real[self.rows, column] = True
        reachable = real & (grid > -torch.inf)  # a positive of the history is no candidate
        counts = reachable.sum(1)
        wins = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        is_candidate = self.scores > -torch.inf
        wins.index_add_(0, self.rows[is_candidate], self.below[is_candidate])
        # m positives among themselves (each also meets itself) win m*m / 2 half-pairs altogether.
        won = wins - counts.double() ** 2 / 2
        # Among ties a rank is the middle one; what cannot be recommended is behind all the rest.
        best = torch.full_like(won, -0.5).scatter_reduce_(
            0, self.rows[is_candidate], self.below[is_candidate], "amax"
        )
        first = self.candidates - best + 0.5
        return won.cpu(), (self.candidates - counts).cpu(), first.cpu()
