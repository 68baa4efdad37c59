"""Steps of layers and losses by the native core, where it is faster than torch.

Many small products take torch three to six times as long on ARM, on one thread; passes over what
layers make up to five times as long. The loss of pairs is the core's everywhere. Without it all are
plain torch; results agree to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.embedding.softmax.native import fits, is_plain, on_arm
from shoal.world.core import load_core

_core = load_core()
SMALL = 1 << 16  # multiplications of a product; beyond them torch's calls cost nothing any more


def products_of(a: Tensor, b: Tensor) -> Tensor:
    """a [..., m, k] @ b [..., k, n] of as many small matrices each: [..., m, n], contiguous."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if b.shape[-2] != k:
        raise ValueError(f"a {list(a.shape)} and b {list(b.shape)} cannot be multiplied")
    if a.shape[:-2] == b.shape[:-2] and m * k * n <= SMALL and fits(a := a.contiguous(), b):
        out = torch.empty(*a.shape[:-1], n)
        count = a.shape[:-2].numel()
        _core.products(a.data_ptr(), b.data_ptr(), out.data_ptr(), count, m, k, n)
        return out
    return a @ b


def core_takes_pairs(queries: Tensor, positives: Tensor, negatives: Tensor) -> bool:
    """Whether the core can make the loss of these pairs: on any machine and any threads."""
    shape = queries.shape
    if _core is None or len(shape) != 2 or positives.shape != shape:
        return False
    if negatives.shape != (shape[0], 1, shape[1]):
        return False
    return is_plain(queries) and is_plain(positives) and is_plain(negatives)


def _check_pairs(queries: Tensor, positives: Tensor, negatives: Tensor) -> None:
    """The core is given addresses: what lies there must be what it takes it for."""
    if not core_takes_pairs(queries, positives, negatives):
        shapes = [list(x.shape) for x in (queries, positives, negatives)]
        raise ValueError(f"pairs of {shapes}; they must be float32 [b, d], [b, d] and [b, 1, d]")


def pair_loss(queries: Tensor, positives: Tensor, negatives: Tensor) -> tuple[float, Tensor]:
    """Sum of -ln sigmoid(<q, p - n>): [b, d], [b, d], [b, 1, d]; and 1 - sigmoid of each [b]."""
    _check_pairs(queries, positives, negatives)
    size, dim = queries.shape
    slopes = torch.empty(size)
    loss = _core.pair_loss(
        queries.data_ptr(),
        positives.data_ptr(),
        negatives.data_ptr(),
        size,
        dim,
        slopes.data_ptr(),
        torch.get_num_threads(),
    )
    return loss, slopes


def pair_gradients(
    queries: Tensor, positives: Tensor, negatives: Tensor, slopes: Tensor, scale: float
) -> Tensor:
    """Gradients of scale * `pair_loss`, whose slopes are given: [3, b, d]."""
    _check_pairs(queries, positives, negatives)
    size, dim = queries.shape
    if slopes.shape != (size,) or not is_plain(slopes):
        raise ValueError(f"{size} pairs have as many slopes")
    out = torch.empty(3, size, dim)
    begin, step = out.data_ptr(), 4 * size * dim
    _core.pair_gradients(
        queries.data_ptr(),
        positives.data_ptr(),
        negatives.data_ptr(),
        size,
        dim,
        slopes.data_ptr(),
        scale,
        [begin, begin + step, begin + 2 * step],
        torch.get_num_threads(),
    )
    return out


def activate_(x: Tensor, bias: Tensor, drop: float, key: int, first: int) -> Tensor:
    """relu(x + bias), dropped by the mask of `key` from position `first` on; in place, `on_arm`.

    x [n, width], bias [width]; drop 0: nothing is dropped.
    """
    if not on_arm(x, bias) or x.dim() != 2 or bias.shape != x.shape[1:]:
        raise ValueError(f"a layer of {list(x.shape)} and a bias of {list(bias.shape)}")
    threads = torch.get_num_threads()
    _core.activate(x.data_ptr(), bias.data_ptr(), *x.shape, key % 2**64, drop, first, threads)
    return x


def activate_back(grad: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
    """grad where made is above 0, and the sums of its columns: [n, width] twice -> and [width]."""
    if not on_arm(grad, made) or grad.dim() != 2 or grad.shape != made.shape:
        raise ValueError(f"gradients {list(grad.shape)} of {list(made.shape)}")
    back, sums = torch.empty_like(grad), grad.new_empty(grad.shape[1])
    addresses = back.data_ptr(), sums.data_ptr(), torch.get_num_threads()
    _core.activate_back(grad.data_ptr(), made.data_ptr(), *grad.shape, *addresses)
    return back, sums
