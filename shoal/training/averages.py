"""Averages: an exponential moving average of the dense parameters, which is what is evaluated.

    average = d * average + (1 - d) * parameter,    d = min(decay, (1 + steps) / (10 + steps))

It is a part of the model: its values are saved and restored with the model's own, and wherever the
model is put into evaluation they stand in the place of the parameters. Rows of tables are not
averaged: most of them are not touched in a step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Averages(nn.Module):
    """The averages of a model's parameters, to be set as one of its attributes."""

    steps: Tensor

    def __init__(self, model: nn.Module, decay: float):
        super().__init__()
        self.decay = decay
        # in a list, or they would be parameters of this module too
        self.own = [p for p in model.parameters() if p.requires_grad]
        for number, parameter in enumerate(self.own):
            self.register_buffer(f"average_{number}", parameter.detach().clone())
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self) -> None:
        """After a step."""
        decay = min(self.decay, (1.0 + int(self.steps)) / (10.0 + int(self.steps)))
        self.steps += 1
        for average, parameter in zip(self._averages(), self.own):
            average.lerp_(parameter.to(average.device), 1.0 - decay)

    def train(self, mode: bool = True) -> Averages:
        """Averages and parameters change places when the model goes into evaluation, and back."""
        if mode != self.training:
            with torch.no_grad():
                for average, parameter in zip(self._averages(), self.own):
                    before = parameter.clone()
                    parameter.copy_(average)
                    average.copy_(before)
        return super().train(mode)

    def _averages(self) -> list[Tensor]:
        return [getattr(self, f"average_{number}") for number in range(len(self.own))]
