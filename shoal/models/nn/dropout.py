"""Dropout: on CPUs with masks by the native core, several times as fast as torch draws them.

The core needs one number from torch's generator, a key: the mask is a pure function of it and of a
value's position, whatever the machine and the number of threads.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.world.core import load_core

_core = load_core()


def dropout(x: Tensor, p: float) -> Tensor:
    """Zeros with probability p, the other values divided by 1 - p; shaped as x."""
    if torch.compiler.is_compiling() or not _core_takes(x) or not 0.0 < p < 1.0:
        return F.dropout(x, p)
    # The mask is kept for backward. To make it again there takes a function of one's own in Python,
    # and what that costs is more than the mask.
    mask = torch.empty(x.shape, dtype=torch.float32, device="cpu")
    _core.dropout_mask(x.numel(), _keys.draw(), p, mask.data_ptr(), torch.get_num_threads())
    return x * mask


def _core_takes(x: Tensor) -> bool:
    # Masks repeat after 2^32 values.
    return _core is not None and x.is_cpu and x.dtype == torch.float32 and 0 < x.numel() < 2**32


class Dropout(nn.Dropout):
    """Dropout in training, the identity otherwise: [...] -> [...]."""

    def __init__(self, p: float):
        super().__init__(p)

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x


class _Keys(threading.local):
    """Keys from torch's generator; each thread has a tensor for them: to make one takes longest."""

    def __init__(self) -> None:
        with torch.inference_mode(False):
            self.tensor = torch.empty(1, dtype=torch.int64, device="cpu")
        self.bits = self.tensor.numpy().view(np.uint64)

    def draw(self) -> int:
        """64 random bits."""
        self.tensor.random_(-(2**63), None)
        return int(self.bits[0])


_keys = _Keys()
