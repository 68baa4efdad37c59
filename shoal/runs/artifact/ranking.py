"""Exact top-k of a catalogue, for a tile of queries at a time.

    scores   a block of items at a time, into one buffer [tile, items]
    groups   the largest score of every 32 items next to each other, while the block is in the cache
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

TILE = 128  # queries at a time
BLOCK = 1 << 15  # items at a time
GROUP = 32
BUFFER = 1 << 27  # scores held at a time, at most: 512 MiB
Fill = Callable[[int, int, int, int, Tensor], None]  # first and last query, and item, where to
Pairs = tuple[np.ndarray, np.ndarray]  # query [m], item [m]: not to be recommended


def tile_of(num_items: int) -> int:
    """How many queries are ranked at a time."""
    return max(1, min(TILE, BUFFER // max(1, num_items)))


def dot_products(queries: Tensor, vectors: Tensor) -> Fill:
    """Scores as dot products: queries [b, d], vectors [n, d]."""

    def fill(a: int, b: int, first: int, last: int, out: Tensor) -> None:
        torch.mm(queries[a:b], vectors[first:last].T, out=out)

    return fill


def rank(
    fill: Fill, num_queries: int, num_items: int, topk: int, without: Pairs | None = None
) -> tuple[Tensor, Tensor]:
    """The best items of each query: their places [b, k] and scores [b, k], the best first.

    Places of the items that `without` names have the score -inf, at the end.
    """
    topk = min(topk, num_items)
    tile = tile_of(num_items)
    places = torch.empty(num_queries, topk, dtype=torch.int64)
    values = torch.empty(num_queries, topk)
    if without is not None:
        order = np.argsort(without[0], kind="stable")
        without = without[0][order], without[1][order]
    free: Queue[Tensor] = Queue()  # buffers that no thread uses now

    def work(a: int) -> None:
        b = min(a + tile, num_queries)
        try:
            buffer = free.get_nowait()
        except Empty:
            buffer = torch.empty(min(tile, num_queries), num_items)
        pairs = None
        if without is not None:
            low, high = np.searchsorted(without[0], (a, b))
            rows, items = without[0][low:high] - a, without[1][low:high]
            pairs = torch.from_numpy(rows), torch.from_numpy(items)
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
