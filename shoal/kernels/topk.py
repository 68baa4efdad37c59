"""Exact top-k of a catalogue, for a tile of queries at a time.

With the native core a block of scores is looked at once, while it is in the cache: each query keeps
what is above its k-th best so far (csrc/topk.h). Of many queries the core makes the products, too,
a few at a time. Without it:

    scores   a block of items at a time, into one buffer [tile, items]
    groups   the largest score of every 32 items next to each other
    best     the k largest items lie in the k groups of the largest maxima: only those are ranked

So the costly part of a top-k, looking at every score more than once, is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue

import numpy as np
import torch
from torch import Tensor

from shoal.kernels.core import load_core

_core = load_core()
TILE = 128  # queries at a time
BLOCK = 1 << 15  # items at a time
CACHED = 1 << 17  # scores of a block that stays in the cache: 512 KiB
MANY = 1024  # queries for which the catalogue is laid out anew
WIDEST = 512  # vectors of which a block stays in the cache
ROOM = 64  # that a query keeps beyond 2 * k before the k best are selected
GROUP = 32
BUFFER = 1 << 27  # scores held at a time, at most: 512 MiB
Fill = Callable[[int, int, int, int, Tensor], None]  # first and last query, and item, where to
Pairs = tuple[np.ndarray, np.ndarray]  # query [m], item [m]: not to be recommended


def tile_of(num_items: int) -> int:
    """How many queries are ranked at a time."""
    return max(1, min(TILE, BUFFER // max(1, num_items)))


class DotProducts:
    """Scores as dot products: queries [b, d], vectors [n, d]."""

    def __init__(self, queries: Tensor, vectors: Tensor):
        self.queries, self.vectors = queries, vectors

    def __call__(self, a: int, b: int, first: int, last: int, out: Tensor) -> None:
        torch.mm(self.queries[a:b], self.vectors[first:last].T, out=out)

    @property
    def fits(self) -> bool:
        """Whether the core can multiply them, and a block of vectors stays in the cache."""
        both = self.queries.dtype, self.vectors.dtype
        return self.vectors.shape[1] <= WIDEST and both == (torch.float32, torch.float32)

    def blocks(self) -> Tensor:
        """The vectors as the core multiplies by them: [n / block, d, block], filled up with 0."""
        wide = _core.TOPK_BLOCK
        filled = torch.nn.functional.pad(self.vectors, (0, 0, 0, -len(self.vectors) % wide))
        return filled.view(-1, wide, filled.shape[1]).transpose(1, 2).contiguous()


def rank(
    fill: Fill, num_queries: int, num_items: int, topk: int, without: Pairs | None = None
) -> tuple[Tensor, Tensor]:
    """The best items of each query: their places [b, k] and scores [b, k], the best first.

    Places of the items that `without` names have the score -inf, at the end.
    """
    topk = min(topk, num_items)
    quick = _core is not None and topk * GROUP * 2 <= num_items < 1 << 31
    tile = TILE if quick else tile_of(num_items)
    blocks: Tensor | None = None
    if quick and isinstance(fill, DotProducts) and num_queries >= MANY and fill.fits:
        blocks = fill.blocks()
    places = torch.empty(num_queries, topk, dtype=torch.int64)
    values = torch.empty(num_queries, topk)
    if without is not None:
        order = np.argsort(without[0], kind="stable")
        without = without[0][order], without[1][order]
    free: Queue[Tensor] = Queue()  # buffers that no thread uses now

    def work(a: int) -> None:
        b = min(a + tile, num_queries)
        pairs = None
        if without is not None:
            low, high = np.searchsorted(without[0], (a, b))
            rows, items = without[0][low:high] - a, without[1][low:high]
            pairs = torch.from_numpy(rows), torch.from_numpy(items)
        if blocks is not None:
            queries = fill.queries[a:b].contiguous()  # type: ignore[attr-defined]
            places[a:b], values[a:b] = _multiply(queries, blocks, num_items, topk, pairs)
            return
        if quick:
            places[a:b], values[a:b] = _keep_best(fill, a, b, num_items, topk, pairs)
            return
        try:
            buffer = free.get_nowait()
        except Empty:
            buffer = torch.empty(min(tile, num_queries), num_items)
        places[a:b], values[a:b] = _rank_tile(fill, a, b, buffer[: b - a], topk, pairs)
        free.put(buffer)

    each(work, range(0, num_queries, tile))
    return places, values


def each(work: Callable[[int], None], tiles: range) -> None:
    """Do the work of every tile, a thread for each of torch's: tiles need not wait for each other,
    as the parts of one product would on a machine that others use too.
    """
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    if threads == 1 or len(tiles) < 2:
        for a in tiles:
            work(a)
        return

    def alone(a: int) -> None:
        with torch.inference_mode(inference):
            work(a)

    try:
        with ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool:
            list(pool.map(alone, tiles))
    finally:
        torch.set_num_threads(threads)


def _kept(size: int, topk: int) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    """What the core keeps of so many queries: its arguments, and the tensors that they point at."""
    room = 2 * topk + ROOM
    kept = torch.empty(size, room), torch.empty(size, room, dtype=torch.int32)
    more = torch.zeros(size, dtype=torch.int32), torch.full((size,), -torch.inf)
    tensors = (*kept, *more)
    return (size, topk, room, *(one.data_ptr() for one in tensors)), tensors


def _finish(state: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    size, topk = state[:2]
    values, places = torch.empty(size, topk), torch.empty(size, topk, dtype=torch.int64)
    _core.topk_finish(*state, values.data_ptr(), places.data_ptr())
    return places, values


def _multiply(
    queries: Tensor,
    blocks: Tensor,
    num_items: int,
    topk: int,
    pairs: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Products and all by the native core: queries [b, d]."""
    size, dim = queries.shape
    offsets = torch.zeros(size + 1, dtype=torch.int64)
    masked = torch.empty(0, dtype=torch.int32)
    if pairs is not None:
        order = (pairs[0] * num_items + pairs[1]).argsort()
        masked = pairs[1][order].int()
        torch.cumsum(torch.bincount(pairs[0], minlength=size), 0, out=offsets[1:])
    state, _alive = _kept(size, topk)
    asked = (queries.data_ptr(), dim, blocks.data_ptr(), num_items)
    _core.topk_products(*state, *asked, offsets.data_ptr(), masked.data_ptr(), len(masked))
    return _finish(state)


def _keep_best(
    fill: Fill, a: int, b: int, num_items: int, topk: int, pairs: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """By the native core: what `_rank_tile` gives, of equal scores the lower place first."""
    size, step = b - a, max(1, CACHED // (b - a))
    state, _alive = _kept(size, topk)
    buffer = torch.empty(size * min(step, num_items))
    starts = torch.arange(0, num_items + step, step)
    if pairs is not None:
        order = pairs[1].argsort()
        rows, items = pairs[0][order], pairs[1][order]
        bounds = torch.searchsorted(items, starts).tolist()
    for number, first in enumerate(range(0, num_items, step)):
        last = min(first + step, num_items)
        block = buffer[: size * (last - first)].view(size, last - first)
        fill(a, b, first, last, block)
        if pairs is not None and bounds[number] < bounds[number + 1]:
            inside = slice(bounds[number], bounds[number + 1])
            block[rows[inside], items[inside] - first] = -torch.inf
        _core.topk_add(*state, block.data_ptr(), last - first, last - first, first)
    return _finish(state)


def _rank_tile(
    fill: Fill, a: int, b: int, scores: Tensor, topk: int, pairs: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    num_items = scores.shape[1]
    maxima = []
    for first in range(0, num_items, BLOCK):
        last = min(first + BLOCK, num_items)
        block = scores[:, first:last]
        fill(a, b, first, last, block)
        if pairs is not None and len(pairs[0]):
            inside = (pairs[1] >= first) & (pairs[1] < last)
            block[pairs[0][inside], pairs[1][inside] - first] = -torch.inf
        even = (last - first) // GROUP * GROUP
        maxima.append(block[:, :even].unflatten(1, (-1, GROUP)).amax(2))
        if even < last - first:  # the last items of all are a smaller group
            maxima.append(block[:, even:].amax(1, keepdim=True))
    if topk * GROUP * 2 > num_items:
        values, places = torch.topk(scores, topk, dim=1)
        return places, values
    groups = torch.topk(torch.cat(maxima, 1), topk, dim=1, sorted=False).indices
    chosen = (groups[:, :, None] * GROUP + torch.arange(GROUP)).flatten(1)
    outside = chosen >= num_items  # of the smaller group
    found = scores.gather(1, chosen.clamp(max=num_items - 1)).masked_fill_(outside, -torch.inf)
    values, column = torch.topk(found, topk, dim=1)
    return chosen.gather(1, column), values


def plain(
    found: Tensor, scores: Tensor, allowed: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Places -> numbers of items, 0 where none was left."""
    places, values = found.numpy(), scores.numpy()
    items = places if allowed is None else allowed[places]
    return np.where(np.isneginf(values), 0, items), values
