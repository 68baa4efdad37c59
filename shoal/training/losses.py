"""Losses: the sum of the batches' mean losses, comparable for every number of processes.

Where a step is one batch of all processes, each of them has its mean loss. Workers that update
separately (parameter servers in `async` and `geo` mode) have their own batches: the mean over the
samples of all workers then counts once for every `train.batch_size` of them, as on one process.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal.training.strategy.base import Strategy


class Losses:
    """Adds up mean losses of batches; where workers update separately, all of them call `sums`."""

    def __init__(self, strategy: Strategy, batch_size: int):
        self.world, self.separate = strategy.world, not strategy.shares_batches
        self.batch_size = batch_size
        self.begin()

    def begin(self, total: float = 0.0, batches: int = 0) -> None:
        """Start from a sum of so many batches' losses."""
        self.total: Tensor | float = total  # a tensor where a GPU would be waited for
        self.batches = batches
        self._mine: Tensor | float = 0.0  # of this worker's samples, not merged yet
        self._samples = 0

    def add(self, loss: Tensor, samples: int) -> None:
        """The mean loss of a step, of which this process had so many samples."""
        number = loss.item() if loss.is_cpu else loss.double()
        if self.separate:
            self._mine = self._mine + number * samples
            self._samples += samples
        else:
            self.total = self.total + number
            self.batches += 1

    def sums(self) -> tuple[float, int]:
        """The sum of all batches' mean losses, and how many batches they are."""
        if self.separate:
            mine = [float(self._mine), self._samples]
            state = torch.tensor(mine, dtype=torch.float64, device=self.world.device)
            total, samples = self.world.all_reduce(state).tolist()
            batches = math.ceil(samples / self.batch_size)
            mean = total / max(1.0, samples)
            self.begin(self.total + mean * batches, self.batches + batches)
        return float(self.total), self.batches
