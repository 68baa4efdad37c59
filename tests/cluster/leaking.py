"""Models that leak at every step: what test_growth.py must notice."""

from __future__ import annotations

import os

import torch

from shoal.data.batch import Batch
from shoal.models.base import Output
from shoal.models.general.bpr import BPR

KEPT: list[object] = []


class KeepsTensors(BPR):
    """A small tensor of every step stays."""

    def forward(self, batch: Batch) -> Output:
        KEPT.append(torch.zeros(128))
        return super().forward(batch)


class KeepsFiles(BPR):
    """Of every few hundred steps a file stays open."""

    def forward(self, batch: Batch) -> Output:
        KEPT.append(None)
        if len(KEPT) % 400 == 0:
            os.open("/dev/null", os.O_RDONLY)
        return super().forward(batch)
