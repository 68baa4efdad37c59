"""Flat: click models that read the vectors of all features side by side, of any widths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.models.base import Batch, ClickModel, Facts, Init


class Flat(ClickModel):
    """`features` is x = [v_1, v_2, ..., dense]."""

    options: Any

    @dataclass
    class Options(ClickModel.Options):
        dim: int = 9
        initial_range: float = (
            0.01  # first values lie within +- this; products near 0 carry no signal
        )

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.embed = self.embeddings(options.dim, Init("uniform", options.initial_range))

    @property
    def flat_width(self) -> int:
        """How wide x is."""
        return self.width(self.options.dim) + self.facts.num_dense

    def features(self, batch: Batch) -> Tensor:
        """All that is known of a sample, side by side: [b, flat_width]."""
        rows = self.flat(self.embed, batch)
        return torch.cat([rows, self.dense(batch)], 1) if self.facts.num_dense else rows
