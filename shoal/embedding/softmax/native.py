"""Steps of a softmax over a catalogue by the native core, where it is faster than torch.

On ARM, on one thread: torch's exponentials take 1.7 times as long there, its product of few
positions with many rows 1.25 times. Without the core all are plain torch; results agree to
rounding.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor

from shoal.world.core import load_core

_core = load_core()
FEW = 64  # positions; with more torch's product is as fast
ON_ARM = platform.machine() in ("aarch64", "arm64") and hasattr(_core, "exponentials")


def logits_of(states: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    """states [n, d] @ rows.T [d, k] + bias [k] -> [n, k]."""
    n, k, dim = states.shape[0], rows.shape[0], rows.shape[1]
    if states.shape != (n, dim) or (bias is not None and bias.shape != (k,)):
        raise ValueError(
            f"states {list(states.shape)}, rows {list(rows.shape)} and bias "
            f"{None if bias is None else list(bias.shape)} do not fit: [n, d], [k, d] and [k]"
        )
    if 0 < n <= FEW and fits(states, rows, *([] if bias is None else [bias])):
        out = torch.empty(n, k)
        address = 0 if bias is None else bias.data_ptr()
        _core.logits(states.data_ptr(), n, rows.data_ptr(), k, dim, address, out.data_ptr())
        return out
    out = states @ rows.T
    return out if bias is None else out.add_(bias)


def exponentials_(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [n, k] = exp(x - highest of its row), in place: the highest [n] and the sums [n]."""
    if fits(x):
        highest, totals = torch.empty(2, len(x)).unbind()
        _core.exponentials(x.data_ptr(), *x.shape, highest.data_ptr(), totals.data_ptr())
        return highest, totals
    highest = x.amax(1)
    x.sub_(highest.unsqueeze(1)).exp_()
    return highest, x.sum(1)


def fits(*tensors: Tensor) -> bool:
    """Whether the core can take these and is worth it."""
    if not ON_ARM or torch.get_num_threads() > 1:
        return False
    return all(is_plain(x) for x in tensors)


def is_plain(x: Tensor) -> bool:
    return x.is_cpu and x.dtype == torch.float32 and x.is_contiguous()
