"""Steps of losses by the native core, where it is faster than torch.

Those of a softmax over a catalogue are on ARM, on one thread: torch's exponentials take 1.7 times
as long there, its product of few positions with many rows 1.25 times, and many small products three
to six times. Those of the loss of pairs are everywhere. Without the core all are plain torch;
results agree to rounding.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor

from shoal.core import load_core

_core = load_core()
FEW = 64  # positions; with more torch's product is as fast
SMALL = 1 << 16  # multiplications of a product; beyond them torch's calls cost nothing any more
ON_ARM = platform.machine() in ("aarch64", "arm64") and hasattr(_core, "exponentials")


def logits_of(states: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    """states [n, d] @ rows.T [d, k] + bias [k] -> [n, k]."""
    n, k, dim = states.shape[0], rows.shape[0], rows.shape[1]
    if 0 < n <= FEW and _fits(states, rows, *([] if bias is None else [bias])):
        out = torch.empty(n, k)
        address = 0 if bias is None else bias.data_ptr()
        _core.logits(states.data_ptr(), n, rows.data_ptr(), k, dim, address, out.data_ptr())
        return out
    out = states @ rows.T
    return out if bias is None else out.add_(bias)


def exponentials_(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [n, k] = exp(x - highest of its row), in place: the highest [n] and the sums [n]."""
    if _fits(x):
        highest, totals = torch.empty(2, len(x)).unbind()
        _core.exponentials(x.data_ptr(), *x.shape, highest.data_ptr(), totals.data_ptr())
        return highest, totals
    highest = x.amax(1)
    x.sub_(highest.unsqueeze(1)).exp_()
    return highest, x.sum(1)


def products_of(a: Tensor, b: Tensor) -> Tensor:
    """a [..., m, k] @ b [..., k, n] of as many small matrices each: [..., m, n], contiguous."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if a.shape[:-2] == b.shape[:-2] and m * k * n <= SMALL and _fits(a := a.contiguous(), b):
        out = torch.empty(*a.shape[:-1], n)
        count = a.shape[:-2].numel()
        _core.products(a.data_ptr(), b.data_ptr(), out.data_ptr(), count, m, k, n)
        return out
    return a @ b


def core_takes_pairs(queries: Tensor, positives: Tensor, negatives: Tensor) -> bool:
    """Whether the core can make the loss of these pairs: on any machine and any threads."""
    one_each = queries.dim() == 2 and negatives.shape == (len(queries), 1, queries.shape[1])
    if not (one_each and positives.shape == queries.shape and hasattr(_core, "pair_margins")):
        return False
    return _is_plain(queries) and _is_plain(positives) and _is_plain(negatives)


def pair_margins(queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """<q, p - n> of every pair: [b, d], [b, d], [b, 1, d] -> [b]."""
    out = torch.empty(len(queries))
    addresses = [x.data_ptr() for x in (queries, positives, negatives)]
    _core.pair_margins(*addresses, *queries.shape, out.data_ptr(), torch.get_num_threads())
    return out


def pair_gradients(
    queries: Tensor,
    positives: Tensor,
    negatives: Tensor,
    margins: Tensor,
    decays: Tensor,
    scale: float,
) -> Tensor:
    """Gradients of scale * sum of -ln sigmoid(margins): [3, b, d]; decays are exp(-|margins|)."""
    out = torch.empty(3, *queries.shape)
    addresses = [x.data_ptr() for x in (queries, positives, negatives)]
    made = [margins.data_ptr(), decays.data_ptr()]
    _core.pair_gradients(
        *addresses,
        *queries.shape,
        made,
        scale,
        [x.data_ptr() for x in out.unbind()],
        torch.get_num_threads(),
    )
    return out


def _fits(*tensors: Tensor) -> bool:
    """Whether the core can take these and is worth it."""
    if not ON_ARM or torch.get_num_threads() > 1:
        return False
    return all(_is_plain(x) for x in tensors)


def _is_plain(x: Tensor) -> bool:
    return x.is_cpu and x.dtype == torch.float32 and x.is_contiguous()
