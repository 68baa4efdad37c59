"""Steps of layers and losses by the native core, where it is faster than torch.

Many small products take torch three to six times as long on ARM, on one thread; passes over what
layers make up to five times as long, dots of pairs more than that. The loss of pairs, and attention
over pairs and over features, are the core's everywhere. Without it all are plain torch; results
agree to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.embedding.softmax.native import HAS_SOFTMAX, fits, has_neon, is_plain, on_arm
from shoal.world.core import load_core

_core = load_core()
MOST_FEATURES = 256  # of a sample; what they make together must fit into a cache
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


def takes_dots(vectors: Tensor) -> bool:
    """Whether the core can make the dots of vectors [b, n, d], whichever of b and n lie apart."""
    return has_neon() and 1 < vectors.shape[1] <= 4096 and _lie_packed(vectors)


def _lie_packed(vectors: Tensor) -> bool:
    """Whether vectors [b, n, d] lie one after the other, whichever of b and n is first."""
    if not (vectors.is_cpu and vectors.dtype == torch.float32):
        return False
    size, number, width = vectors.shape
    next_, apart, one = vectors.stride()
    packed = next_ == number * width and apart == width
    packed = packed or (next_ == width and apart == size * width)
    return one == 1 and packed and size > 0 and width > 0


def dots(vectors: Tensor) -> Tensor:
    """Dot products of all pairs i > j: [b, n, d] -> [b, n * (n - 1) / 2]."""
    out = torch.empty(len(vectors), vectors.shape[1] * (vectors.shape[1] - 1) // 2)
    _core.dots(vectors.data_ptr(), _place(vectors), out.data_ptr(), torch.get_num_threads())
    return out


def dots_back(vectors: Tensor, grads: Tensor) -> Tensor:
    """The gradient of `dots` to vectors; grads [b, n * (n - 1) / 2]."""
    grads, out = grads.contiguous(), torch.empty_strided(vectors.shape, vectors.stride())
    if grads.shape != (len(vectors), vectors.shape[1] * (vectors.shape[1] - 1) // 2):
        raise ValueError(f"gradients {list(grads.shape)} of dots of {list(vectors.shape)}")
    given = vectors.data_ptr(), _place(vectors), grads.data_ptr()
    _core.dots_back(*given, out.data_ptr(), torch.get_num_threads())
    return out


def pair_products(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Products of all pairs, element by element, summed, and the sum of all vectors.

    [b, n, d] -> [b, d] each
    """
    out, total = torch.empty(2, vectors.shape[0], vectors.shape[2]).unbind()
    _core.pair_products(vectors.data_ptr(), _place(vectors), out.data_ptr(), total.data_ptr())
    return out, total


def pair_products_back(vectors: Tensor, total: Tensor, grads: Tensor) -> Tensor:
    """The gradient of the first of `pair_products` to vectors; total its second, grads [b, d]."""
    grads, out = grads.contiguous(), torch.empty_strided(vectors.shape, vectors.stride())
    if not total.is_contiguous() or not grads.shape == total.shape == vectors.shape[::2]:
        raise ValueError(f"gradients {list(grads.shape)} of products of {list(vectors.shape)}")
    given = vectors.data_ptr(), _place(vectors), total.data_ptr(), grads.data_ptr()
    _core.pair_products_back(*given, out.data_ptr())
    return out


def takes_attention(*of: Tensor) -> bool:
    """Whether the core can make attention over pairs of these: on any machine and any threads."""
    return HAS_SOFTMAX and all(is_plain(x) for x in of)


def pair_attention(columns: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """As `columns.pair_attention`: [n, d, b], [o, d], [o], [o], [d] -> [pairs, b] each."""
    given, sizes = _attention(columns, *weights)
    count, samples = len(columns), columns.shape[2]
    asked, values = torch.empty(2, count * (count - 1) // 2, samples).unbind()
    made = [asked.data_ptr(), values.data_ptr()]
    _core.pair_attention(given, sizes, made, torch.get_num_threads())
    return asked, values


def pair_attention_back(grads: tuple[Tensor, Tensor], *of: Tensor) -> tuple[Tensor, ...]:
    """Gradients to all that `pair_attention` was given (`of`), from those of what it made."""
    given, sizes = _attention(*of)
    both = [grad.contiguous() for grad in grads]
    count, samples = len(of[0]), of[0].shape[2]
    if any(grad.shape != (count * (count - 1) // 2, samples) for grad in both):
        raise ValueError(f"gradients {[list(x.shape) for x in both]} of pairs of {count} features")
    back = tuple(torch.empty_like(x) for x in of)
    addresses = [x.data_ptr() for x in both], [x.data_ptr() for x in back]
    _core.pair_attention_back(given, sizes, *addresses, torch.get_num_threads())
    return back


def _attention(*of: Tensor) -> tuple[list[int], list[int]]:
    """Addresses of what attention over pairs reads, and their sizes."""
    (count, width, samples), hidden = of[0].shape, len(of[1])
    wanted = [(count, width, samples), (hidden, width), (hidden,), (hidden,), (width,)]
    if not takes_attention(*of) or [tuple(x.shape) for x in of] != wanted:
        raise ValueError(f"attention over pairs of {[list(x.shape) for x in of]}")
    return [x.data_ptr() for x in of], [count, width, hidden, samples]


def takes_attend(x: Tensor, weight: Tensor) -> bool:
    """Whether the core can make attention over features: on any machine and any threads."""
    return HAS_SOFTMAX and 1 < x.shape[1] <= MOST_FEATURES and _lie_packed(x) and is_plain(weight)


def attend(x: Tensor, weight: Tensor, heads: int) -> Tensor:
    """As `columns.features_attend`: [b, n, d], [4 * width, d] -> [b, n, width]."""
    given = _attend(x, weight, heads)
    out = torch.empty(*x.shape[:2], len(weight) // 4)
    _core.attend(*given, out.data_ptr(), torch.get_num_threads())
    return out


def attend_back(x: Tensor, weight: Tensor, heads: int, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients to x and the weight, from those of what `attend` made."""
    given, grads = _attend(x, weight, heads), grads.contiguous()
    if grads.shape != (*x.shape[:2], len(weight) // 4):
        raise ValueError(f"gradients {list(grads.shape)} of attention over {list(x.shape)}")
    of_x, of_weight = torch.empty_strided(x.shape, x.stride()), torch.empty_like(weight)
    back = [of_x.data_ptr(), of_weight.data_ptr()]
    _core.attend_back(*given, grads.data_ptr(), back, torch.get_num_threads())
    return of_x, of_weight


def _attend(x: Tensor, weight: Tensor, heads: int) -> tuple[int, list[int], int, list[int]]:
    """What attention over features reads: addresses and sizes."""
    sound = takes_attend(x, weight) and weight.shape == (len(weight), x.shape[2])
    if not sound or len(weight) % (4 * heads):
        raise ValueError(f"attention over {list(x.shape)} by {list(weight.shape)}, {heads} heads")
    size, number, width = x.shape
    place = [number, width, size, x.stride(1), x.stride(0)]
    return x.data_ptr(), place, weight.data_ptr(), [heads, len(weight) // (4 * heads)]


def _place(vectors: Tensor) -> list[int]:
    """Number, width, samples, and how far apart vectors and samples are."""
    if not takes_dots(vectors):
        raise ValueError(f"vectors {list(vectors.shape)}, {vectors.stride()} apart")
    size, number, width = vectors.shape
    return [number, width, size, vectors.stride(1), vectors.stride(0)]
