"""Dropout: on CPUs by the native core, several times as fast as torch's; elsewhere torch's own.

The core needs one number from torch's generator, a key: the mask is a pure function of it and of a
value's position. So backward makes the mask again, and nothing but the key is kept for it.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core import load_core

_core = load_core()


def dropout(x: Tensor, p: float) -> Tensor:
    """Zeros with probability p, the other values divided by 1 - p; shaped as x."""
    if torch.compiler.is_compiling() or not _core_takes(x) or not 0.0 < p < 1.0:
        return F.dropout(x, p)
    return _Masked.apply(x, p, _word.draw())


def _core_takes(x: Tensor) -> bool:
    # Masks repeat after 2^32 values.
    return _core is not None and x.is_cpu and x.dtype == torch.float32 and 0 < x.numel() < 2**32


class Dropout(nn.Dropout):
    """Dropout in training, the identity otherwise: [...] -> [...]."""

    def __init__(self, p: float):
        super().__init__(p)

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x


class _Word(threading.local):
    """Keys from torch's generator; a tensor for each thread, since making one takes longest."""

    def __init__(self) -> None:
        with torch.inference_mode(False):
            self.tensor = torch.empty((), dtype=torch.int64, device="cpu")

    def draw(self) -> int:
        """64 random bits."""
        return int(self.tensor.random_(-(2**63), None)) % 2**64


_word = _Word()


class _Masked(torch.autograd.Function):
    """x times the mask of a key, divided by 1 - p."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, key: int) -> Tensor:
        ctx.p, ctx.key = p, key
        return _masked(x, p, key)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        # Linear in x: gradients go through the same function, and gradients of gradients too.
        again = _Masked.apply if torch.is_grad_enabled() else _masked
        return again(grads[0], ctx.p, ctx.key), None, None


def _masked(x: Tensor, p: float, key: int) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _core.dropout(x.data_ptr(), x.numel(), key, p, out.data_ptr(), torch.get_num_threads())
    return out
