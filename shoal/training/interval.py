"""Interval: a line every so many steps with the loss, the speed and, for click models, the AUC.

The AUC is that of the interval's own predictions, each made before its sample was learnt from.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import Tensor

from shoal.models.base import Model, Output
from shoal.training.losses import Losses
from shoal.training.metrics import MetricSet, Valued
from shoal.world.world import World

log = logging.getLogger("shoal")


class Interval:
    """Figures of the steps since the last line, merged over ranks. `every` 0: nothing is done."""

    def __init__(self, model: Model, world: World, losses: Losses, every: int, decimals: int = 4):
        self.world, self.losses, self.every, self.decimals = world, losses, every, decimals
        self.scored = False  # whether the model tells what it predicts
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
        mine = torch.tensor([self.samples], dtype=torch.float64, device=self.world.device)
        samples = self.world.all_reduce(mine)
        total, batches = self.losses.sums()
        line = f"loss: {total / max(1, batches):z.{self.decimals}f}"
        line += f", samples/s: {float(samples) / (time.perf_counter() - self.begun):.0f}"
        if self.scored:
            self.metrics.reduce(self.world)
            line += f", auc: {self.metrics.compute()['auc']:.{self.decimals}f}"
        log.info("epoch %d step %d [%s]", epoch, number, line)
        self.begin()
