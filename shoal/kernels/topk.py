"""Exact top-k of a catalogue, for a tile of queries at a time.

With the native core a block of scores is looked at once, while it is in the cache: each query keeps
what is above its k-th best so far (csrc/topk.h). Of many queries the core makes the products, too,
a few at a time. Without it, and where an evaluation streams blocks on any device, `TopK` keeps the
best of all blocks so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, repeat

import numpy as np
import torch
from torch import Tensor

from shoal.kernels.bags import sum_bags
from shoal.kernels.core import load_core
from shoal.kernels.parallel import ThreadTeam

_core = load_core()
TILE = 128  # queries at a time
BLOCK = 1 << 15  # items at a time
CACHED = 1 << 17  # scores of a block that stays in the cache: 512 KiB
COLUMNS = 512  # items at a time of a tile of 256 queries: scores of 512 KiB
MANY = 1024  # queries for which the catalogue is laid out anew
Fill = Callable[[int, int, int, int, Tensor], None]  # first and last query, and item, where to
Pairs = tuple[np.ndarray, np.ndarray]  # query [m], item [m]: not to be recommended


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
        return self.vectors.shape[1] <= 512 and both == (torch.float32, torch.float32)

    def blocks(self) -> Tensor:
        """The vectors as the core multiplies by them: [n / block, d, block], filled up with 0."""
        wide = _core.TOPK_BLOCK
        filled = torch.nn.functional.pad(self.vectors, (0, 0, 0, -len(self.vectors) % wide))
        return filled.view(-1, wide, filled.shape[1]).transpose(1, 2).contiguous()


class MaskedFill:
    """Dot products, some of which are -inf: penalties [n], 0 or -inf for each item."""

    def __init__(self, products: DotProducts, penalties: Tensor):
        self.products, self.penalties = products, penalties

    def __call__(self, a: int, b: int, first: int, last: int, out: Tensor) -> None:
        self.products(a, b, first, last, out)
        out += self.penalties[first:last]


def rank(
    fill: Fill, num_queries: int, num_items: int, topk: int, without: Pairs | None = None
) -> tuple[Tensor, Tensor]:
    """The best items of each query: their places [b, k] and scores [b, k], the best first.

    Places of the items that `without` names have the score -inf, at the end.
    """
    topk = min(topk, num_items)
    # With few items to each that is wanted the core gains nothing.
    quick = _core is not None and topk * 64 <= num_items < 1 << 31
    blocks: Tensor | None = None
    if quick and isinstance(fill, DotProducts) and num_queries >= MANY and fill.fits:
        blocks = fill.blocks()
    places = torch.empty(num_queries, topk, dtype=torch.int64)
    values = torch.empty(num_queries, topk)
    if without is not None and num_queries > TILE:
        order = np.argsort(without[0], kind="stable")
        without = without[0][order], without[1][order]

    def work(a: int) -> None:
        b = min(a + TILE, num_queries)
        pairs = None
        if without is not None:
            rows, items = without
            if num_queries > TILE:
                low, high = np.searchsorted(rows, (a, b))
                rows, items = rows[low:high] - a, items[low:high]
            pairs = torch.from_numpy(rows), torch.from_numpy(items)
        if blocks is not None:
            queries = fill.queries[a:b].contiguous()  # type: ignore[attr-defined]
            places[a:b], values[a:b] = _multiply(queries, blocks, num_items, topk, pairs)
            return
        best = _keep_best if quick else _plain
        places[a:b], values[a:b] = best(fill, a, b, num_items, topk, pairs)

    if num_queries <= TILE and torch.get_num_threads() == 1:
        work(0)  # as each batch of a service is: nothing to share
        return places, values
    with ThreadTeam() as workers:
        workers.each(work, range(0, num_queries, TILE))
    return places, values


def _kept(size: int, topk: int) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    """What the core keeps of so many queries: its arguments, and the tensors that they point at."""
    room = 2 * topk + 64  # before the k best are selected
    tensors = (
        torch.empty(size, room),  # values
        torch.empty(size, room, dtype=torch.int32),  # their places
        torch.zeros(size, dtype=torch.int32),  # how many there are
        torch.full((size,), -torch.inf),  # the least that still counts
    )
    return (size, topk, room, *(tensor.data_ptr() for tensor in tensors)), tensors


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
    _core.topk_products(
        *state,
        queries.data_ptr(),
        dim,
        blocks.data_ptr(),
        num_items,
        offsets.data_ptr(),
        masked.data_ptr(),
        len(masked),
    )
    return _finish(state)


def _keep_best(
    fill: Fill, a: int, b: int, num_items: int, topk: int, pairs: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """By the native core: what `_plain` gives, of equal scores the lower place first."""
    size, step = b - a, max(1, CACHED // (b - a))
    if not isinstance(
        fill, DotProducts | MaskedFill
    ):  # what makes a block may have work that all share
        step = max(step, BLOCK)
    state, _alive = _kept(size, topk)
    buffer = torch.empty(size * min(step, num_items))
    for first, (rows, items) in zip(
        range(0, num_items, step), _pairs_by_block(pairs, num_items, step)
    ):
        last = min(first + step, num_items)
        block = buffer[: size * (last - first)].view(size, last - first)
        fill(a, b, first, last, block)
        if len(rows):
            block[rows, items - first] = -torch.inf
        _core.topk_add(*state, block.data_ptr(), last - first, last - first, first)
    return _finish(state)


def _pairs_by_block(
    pairs: tuple[Tensor, Tensor] | None, num_items: int, step: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and items of the pairs whose item lies in each block of `step` items."""
    if pairs is None or not len(pairs[0]):
        nothing = torch.empty(0, dtype=torch.int64)
        yield from repeat((nothing, nothing))
        return
    if step >= num_items:  # as for one query of a service: nothing to sort
        yield pairs
        return
    order = pairs[1].argsort()
    rows, items = pairs[0][order], pairs[1][order]
    starts = torch.arange(0, num_items + step, step)
    bounds = torch.searchsorted(items, starts).tolist()
    for low, high in pairwise(bounds):
        yield rows[low:high], items[low:high]


def _plain(
    fill: Fill, a: int, b: int, num_items: int, topk: int, pairs: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The best of each row of scores, as by the native core: in torch."""
    best = TopK(topk)
    for first in range(0, num_items, BLOCK):
        last = min(first + BLOCK, num_items)
        block = torch.empty(b - a, last - first)
        fill(a, b, first, last, block)
        if pairs is not None and len(pairs[0]):
            inside = (pairs[1] >= first) & (pairs[1] < last)
            block[pairs[0][inside], pairs[1][inside] - first] = -torch.inf
        best.add(block, first)
    return best.result()


class TopK:
    """The best items of a tile of queries, over blocks of items, on any device.

    On a CPU the native core keeps them, and of equal scores the lower item comes first.
    """

    def __init__(self, keep: int):
        self.keep = keep
        self.value: Tensor | None = None
        self._state: tuple[tuple[int, ...], tuple[Tensor, ...]] | None = None  # of the core

    def add(self, scores: Tensor, start: int) -> None:
        """Scores [b, n] of the items from `start` on."""
        if takes_scores(scores):
            scores = scores.contiguous()
            self._state = self._state or _kept(len(scores), self.keep)
            width = scores.shape[1]
            _core.topk_add(*self._state[0], scores.data_ptr(), width, width, start)
            return
        value, index = torch.topk(scores, min(self.keep, scores.shape[1]), dim=1)
        index = index + start if start else index
        if self.value is None:
            self.value, self.index = value, index
            return
        value, index = torch.cat([self.value, value], 1), torch.cat([self.index, index], 1)
        self.value, column = torch.topk(value, min(self.keep, value.shape[1]), dim=1)
        self.index = index.gather(1, column)

    def items(self) -> Tensor:
        """[b, keep] item ids, 0 where a query has fewer candidates."""
        index, value = self.result()
        return torch.where(value > -torch.inf, index, 0).cpu()

    def result(self) -> tuple[Tensor, Tensor]:
        """Item ids [b, keep] and their scores, the best first; -inf where there are fewer."""
        if self._state is not None:
            return _finish(self._state[0])
        assert self.value is not None, "no block was added"
        return self.index, self.value


class ProductTopK:
    """The best items of a tile of queries [b, d] whose scores are dot products.

    The scores of a few hundred items at a time are made, masked and looked at by the native core
    while they are in the cache. The arithmetic of a tile does not depend on other tiles, so tiles
    may be worked at side by side (`each`).
    """

    def __init__(self, queries: Tensor, keep: int, masked: Pairs, sparse: bool = False):
        """masked: rows of the queries and items that are left out; so is item 0, the padding.

        sparse: queries are mostly zeros, and only their other values are multiplied and kept.
        """
        self.size, self.best = len(queries), TopK(keep)
        self._product = _sparse_product(queries) if sparse else partial(_dense_product, queries)
        order = np.argsort(masked[1], kind="stable")
        self.masked_rows = torch.from_numpy(masked[0][order])
        self.masked_items = torch.from_numpy(masked[1][order])

    @staticmethod
    def pieces(vectors: Tensor, sparse: bool) -> Sequence[Tensor]:
        """Vectors of items [n, d] as `add` multiplies by them, the same for all tiles.

        A few hundred items each: [m, d], or [d, m] for sparse queries, which read rows of it.
        """
        parts = vectors.split(COLUMNS)
        return [part.T.contiguous() for part in parts] if sparse else parts

    def add(self, pieces: Sequence[Tensor], start: int) -> None:
        """The items from `start` on, by their `pieces`."""
        if not self.size:
            return
        edges = torch.arange(start, start + (len(pieces) + 1) * COLUMNS, COLUMNS)
        bounds = torch.searchsorted(self.masked_items, edges).tolist()
        for number, piece in enumerate(pieces):
            first = start + number * COLUMNS
            scores = self._product(piece)
            if first == 0:
                scores[:, 0] = -torch.inf
            inside = slice(bounds[number], bounds[number + 1])
            scores[self.masked_rows[inside], self.masked_items[inside] - first] = -torch.inf
            self.best.add(scores, first)

    def items(self) -> Tensor:
        """[b, keep] item ids, 0 where a query has fewer candidates."""
        if not self.size:  # of a process without users
            return torch.zeros(0, self.best.keep, dtype=torch.int64)
        return self.best.items()


def _dense_product(queries: Tensor, vectors: Tensor) -> Tensor:
    """[b, d], [m, d] -> [b, m]"""
    return queries @ vectors.T


def _sparse_product(queries: Tensor) -> Callable[[Tensor], Tensor]:
    """The function of columns [d, m] whose value is queries [b, d] @ columns."""
    rows, places = queries.nonzero(as_tuple=True)
    starts = torch.searchsorted(rows, torch.arange(len(queries) + 1))
    values = queries[rows, places]
    return lambda columns: sum_bags(columns, starts, places, values)


def takes_scores(scores: Tensor) -> bool:
    """Whether the native core can look at these scores, or at products of such tensors."""
    return _core is not None and scores.device.type == "cpu" and scores.dtype == torch.float32


def plain(
    best_places: Tensor, scores: Tensor, allowed: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Places -> numbers of items, 0 where none was left."""
    places, values = best_places.numpy(), scores.numpy()
    items = places if allowed is None else allowed[places]
    return np.where(np.isneginf(values), 0, items), values
