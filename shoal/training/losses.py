"""Losses: the sum of the batches' mean losses, comparable for every number of processes.

Where a step is one batch of all processes, each of them has its mean loss. Workers that update
separately (parameter servers in `async` and `geo` mode) have their own batches: the mean over the
samples of all workers then counts once for every `train.batch_size` of them, as on one process.
"""

import logging
import math
import time
from typing import Any

import torch
from torch import Tensor

from shoal.distributed.world import World
from shoal.models.base import Model, Output
from shoal.training.metrics import MetricSet, Valued
from shoal.training.strategies.base import Strategy


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
        self._ranks: Tensor | None = None  # of each worker: its losses times samples, its samples

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
            own_sums = [float(self._mine), self._samples]
            state = torch.tensor(own_sums, dtype=torch.float64, device=self.world.device)
            ranks = self.world.stack(state)
            total, samples = ranks.sum(dim=0).tolist()
            ranks = ranks if self._ranks is None else ranks + self._ranks
            batches = math.ceil(samples / self.batch_size)
            mean = total / max(1.0, samples)
            self.begin(self.total + mean * batches, self.batches + batches)
            self._ranks = ranks
        return float(self.total), self.batches

    @property
    def by_rank(self) -> list[float]:
        """The mean loss of each worker's samples so far, where workers update separately."""
        if self._ranks is None:
            return []
        return [total / max(1.0, samples) for total, samples in self._ranks.tolist()]


log = logging.getLogger("shoal")


class LogInterval:
    """Figures of the steps since the last line, merged over ranks. `every` 0: nothing is done."""

    def __init__(self, model: Model, world: World, losses: Losses, every: int, decimals: int = 4):
        self.world = world
        self.losses = losses
        self.every = every
        self.decimals = decimals
        self.scored = False  # whether the model reports its predictions
        if every and model.kind == "clicks":
            model.register_forward_hook(self._keep)
        self.begin()

    def begin(self) -> None:
        """Forget what came before."""
        self.samples = 0
        self.losses.begin()
        self.begun = time.perf_counter()
        self.metrics = MetricSet(["AUC"], [1], 1, torch.zeros(1))

    def _keep(self, model: Any, arguments: tuple[Any, ...], output: Output) -> None:
        labels = arguments[0].labels
        if output.scores is not None and labels is not None and model.training:
            users = torch.zeros(len(labels), dtype=torch.int64)
            scores = output.scores
            if labels.dim() == 2:  # of several the first
                scores, labels = scores[:, 0], labels[:, 0]
            self.metrics.update(Valued(users, scores.cpu(), labels.cpu()))
            self.scored = True

    def step(self, epoch: int, number: int, size: int, loss: Tensor) -> None:
        """Count a step of `size` samples on this rank; every rank calls it for every step."""
        if not self.every:
            return
        self.samples += size
        self.losses.add(loss, size)
        if number % self.every:
            return
        own_samples = torch.tensor([self.samples], dtype=torch.float64, device=self.world.device)
        samples = self.world.all_reduce(own_samples)
        total, batches = self.losses.sums()
        line = f"loss: {total / max(1, batches):z.{self.decimals}f}"
        line += f", samples/s: {float(samples) / (time.perf_counter() - self.begun):.0f}"
        if self.scored:
            self.metrics.reduce(self.world)
            line += f", auc: {self.metrics.compute()['auc']:.{self.decimals}f}"
        log.info("epoch %d step %d [%s]", epoch, number, line)
        self.begin()
