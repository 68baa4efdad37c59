"""Metrics of predicted clicks by the native core, where it is faster than numpy and torch.

On ARM: numpy sorts doubles there without wide vectors, and torch makes a dozen passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.embedding.softmax.native import has_neon
from shoal.world.core import load_core

_core = load_core()


def takes(*columns: Tensor) -> bool:
    """Whether the core can read these columns [n] of doubles and is worth it."""
    shape = columns[0].shape
    plain = all(x.is_cpu and x.dtype == torch.float64 and x.is_contiguous() for x in columns)
    return has_neon() and plain and len(shape) == 1 and all(x.shape == shape for x in columns)


def pairs_in_order(scores: Tensor, labels: Tensor) -> tuple[float, int, int]:
    """As `pairs.pairs_in_order`, of what it `takes`."""
    given = scores.data_ptr(), labels.data_ptr(), len(scores)
    twice, positives, odd = _core.pairs_in_order(*given)
    return float("nan") if odd else twice / 2, positives, len(scores) - positives


def log_loss(scores: Tensor, labels: Tensor) -> float | None:
    """The sum of -ln of what scores gave to their labels; None: a score is no probability."""
    total, outside = _core.log_loss(scores.data_ptr(), labels.data_ptr(), len(scores))
    return None if outside else total


def all_binary(labels: Tensor) -> bool:
    """Whether every label is 0 or 1."""
    return _core.first_odd(labels.data_ptr(), len(labels)) == len(labels)
