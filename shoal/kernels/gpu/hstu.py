"""HSTU's attention on a GPU, over sequences of any lengths.

Forward, a tile of queries goes over the keys it sees. Biases are computed where they are added:
that of a distance is read from its table, that of a time found by the least times of buckets.

Backward, weights and the gradients of scores are made once, tile by tile, and left in a scratch
buffer for further kernels:

    of queries   gradients of scores            @ keys
    of keys      gradients of scores transposed @ queries
    of values    weights transposed             @ gradients of the output
    of biases    tiles at the same distance from the diagonal are summed up first, and then along
                 diagonals and by buckets

The scratch buffer is bounded: it holds as many sequences, or columns of keys of one sequence, as
fit SCRATCH bytes at a time, whatever the batch and its lengths. No other memory grows with the
square of a length. Nothing is added up by atomics: the same numbers twice.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from shoal.kernels.common.sequences import BUCKETS, Sequences, bucket_steps
from shoal.kernels.gpu import hstu_tiles as kernels
from shoal.kernels.gpu.products import INTERPRETED, is_full

SCRATCH = 2**30  # bytes of weights and gradients of scores that wait for further kernels
ALIGN = 128  # places of a block, and of the largest tile; every tile's places divide it
WHOLE = 64  # scratch tiles are written up to a multiple of so many places
GROUPS = 32  # programs that share the tiles at one distance from the diagonal

Tiles = dict[str, Any]  # of one kernel: QUERIES, KEYS, num_warps, num_stages, TMA


class HSTUAttended(torch.autograd.Function):
    """See shoal.kernels.hstu.hstu_attention."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sequences: Sequences,
        position_bias: Tensor | None,
        time_bias: Tensor | None,
        n: int,
    ) -> Tensor:
        query, key, value = (_flat(x) for x in (query, key, value))
        ctx.save_for_backward(query, key, value, position_bias, time_bias)
        ctx.sequences, ctx.n = sequences, n
        return forward(query, key, value, sequences, position_bias, time_bias, n)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, position_bias, time_bias = ctx.saved_tensors
        of_query, of_key, of_value, of_positions, of_times = backward(
            query, key, value, _flat(grad), ctx.sequences, position_bias, time_bias, ctx.n
        )
        return of_query, of_key, of_value, None, of_positions, of_times, None


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sequences: Sequences,
    position_bias: Tensor | None,
    time_bias: Tensor | None,
    n: int,
    tiles: Tiles | None = None,
) -> Tensor:
    """[tokens, heads, d] each, as `_flat` leaves them -> [tokens, heads, e]."""
    constants = _shape(query, value, position_bias, time_bias)
    tiles = tiles or _tiles("forward", query, constants)
    out = _made(value, sequences, value.dtype)
    table = _table(sequences, query.device)
    if len(table):
        kernels.attend[len(table) * (ALIGN // tiles["QUERIES"]), constants["HEADS"]](
            _source(query, tiles, "QUERIES"),
            _source(key, tiles, "KEYS"),
            _source(value, tiles, "KEYS"),
            out,
            table,
            *_places(query, sequences, position_bias, time_bias),
            query.stride(0),
            key.stride(0),
            value.stride(0),
            1.0 / n,
            ALIGN=ALIGN,
            **constants,
            **tiles,
        )
    return out


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad: Tensor,
    sequences: Sequences,
    position_bias: Tensor | None,
    time_bias: Tensor | None,
    n: int,
    score_tiles: Tiles | None = None,
    product_tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of queries, keys, values and both biases."""
    constants = _shape(query, value, position_bias, time_bias)
    score_tiles = score_tiles or _tiles("scores", query, constants)
    product_tiles = product_tiles or _tiles("products", query, constants)
    heads = constants["HEADS"]
    room = SCRATCH // (2 * query.element_size() * ALIGN * ALIGN * heads)
    parts = _parts(sequences.length_bounds, room, ALIGN)
    lines = max((part.tiles for part in parts), default=0) * heads * ALIGN
    weights, of_scores = (query.new_empty(lines, ALIGN) for _ in range(2))
    cut = any(part.low for part in parts)  # then parts of a sum are added up
    of_query = _made(query, sequences, torch.float32 if cut else query.dtype)
    of_key, of_value = (_made(x, sequences, x.dtype) for x in (key, value))
    table = _table(sequences, query.device)
    places = _places(query, sequences, position_bias, time_bias)
    biases = _Biases(sequences, position_bias, time_bias, query.device)
    for part in parts:
        # Weights and the gradients of scores of this part, into the scratch buffer.
        kernels.write_scores[part.blocks * (ALIGN // score_tiles["QUERIES"]), heads](
            _source(query, score_tiles, "QUERIES"),
            _source(key, score_tiles, "KEYS"),
            _source(value, score_tiles, "KEYS"),
            _source(grad, score_tiles, "QUERIES"),
            _tile_source(weights, score_tiles, "QUERIES", "KEYS"),
            _tile_source(of_scores, score_tiles, "QUERIES", "KEYS"),
            table,
            *places,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            grad.stride(0),
            part.first,
            part.skip * heads,
            part.low,
            part.high,
            ALIGN=ALIGN,
            WHOLE=WHOLE,
            **constants,
            **score_tiles,
        )
        # The three products that read it.
        for scratch, vectors, out, transposed in (
            (of_scores, key, of_query, False),
            (of_scores, query, of_key, True),
            (weights, grad, of_value, True),
        ):
            _multiply(
                scratch,
                vectors,
                out,
                table,
                places,
                part,
                scale=1.0 / n,
                transposed=transposed,
                full=constants["FULL"],
                tiles=product_tiles,
            )
        # Biases are shared by all sequences: their gradients are summed over the parts.
        biases.add(of_scores, table, places, part, heads)
    of_positions, of_times = biases.sums(1.0 / n)
    return of_query.to(query.dtype), of_key, of_value, of_positions, of_times


def _multiply(
    scratch: Tensor,
    vectors: Tensor,
    out: Tensor,
    table: Tensor,
    places: "_Places",
    part: "_Part",
    *,
    scale: float,
    transposed: bool,
    full: bool,
    tiles: Tiles,
) -> None:
    """scale * scratch @ vectors, or that of the transposed scratch, into `out`: a part's rows."""
    rows, columns = ("INNER", "ROWS") if transposed else ("ROWS", "INNER")
    heads, dim = vectors.shape[1:]
    kernels.multiply[part.blocks * (ALIGN // tiles["ROWS"]), heads](
        _tile_source(scratch, tiles, rows, columns),
        _source(vectors, tiles, "INNER"),
        out,
        table,
        places.starts,
        places.lengths,
        vectors.stride(0),
        scale,
        part.first,
        part.skip * heads,
        part.low,
        part.high,
        HEADS=heads,
        DIM=dim,
        WIDTH=_width(dim),
        ALIGN=ALIGN,
        FULL=full,
        TRANSPOSED=transposed,
        ADD=part.low > 0 and not transposed,
        **tiles,
    )


@dataclass
class _Part:
    """What the scratch buffer holds at a time: whole sequences, or columns of one."""

    first: int  # block in the table
    skip: int  # tiles of one head before it
    blocks: int = 0
    tiles: int = 0  # of one head
    longest: int = 0  # blocks of the longest sequence
    low: int = 0  # columns: blocks of keys, low <= column < high
    high: int = 2**20


@lru_cache(maxsize=64)
def _parts(lengths: tuple[int, ...], room: int, align: int) -> list[_Part]:
    """Sequences in the order of the table, `room` tiles of one head at a time."""
    parts = [_Part(0, 0)]
    first = skip = 0
    for count in _counts(lengths, align):
        tiles = count * (count + 1) // 2
        if tiles > room:  # a sequence by columns
            low, before = 0, skip
            while low < count:
                part = _Part(first, before, count, 0, count, low)
                while low < count and (not part.tiles or part.tiles + count - low <= room):
                    part.tiles += count - low
                    low += 1
                part.high, before = low, before + part.tiles
                parts.append(part)
            parts.append(_Part(first + count, skip + tiles))
        else:
            if parts[-1].tiles + tiles > room:
                parts.append(_Part(first, skip))
            last = parts[-1]
            last.blocks, last.tiles = last.blocks + count, last.tiles + tiles
            last.longest = max(last.longest, count)
        first, skip = first + count, skip + tiles
    return [part for part in parts if part.tiles]


def _counts(lengths: tuple[int, ...], align: int) -> list[int]:
    """Blocks of each sequence, the longest first."""
    return sorted((triton.cdiv(length, align) for length in lengths), reverse=True)


def _table(sequences: Sequences, device: torch.device) -> Tensor:
    """See shoal/kernels/gpu/hstu_tiles.py: int32 [blocks, 4]."""
    if sequences.sizes is None:
        return _table_of_equal(len(sequences.lengths), sequences.longest, ALIGN, device)
    return _table_of(sequences.sizes, ALIGN, device)


@lru_cache(maxsize=8)  # layers of one step
def _table_of(lengths: tuple[int, ...], align: int, device: torch.device) -> Tensor:
    counts = torch.tensor([triton.cdiv(length, align) for length in lengths])
    counts, samples = counts.sort(descending=True, stable=True)
    tiles = counts * (counts + 1) // 2
    bases = tiles.cumsum(0) - tiles
    of = torch.repeat_interleave(torch.arange(len(counts)), counts)  # the sequence of a block
    ends = counts.cumsum(0)
    block = ends[of] - 1 - torch.arange(len(of))
    table = torch.stack([samples[of], block, bases[of], counts[of]], 1).int()
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table


@cache  # kept for good: recorded CUDA graphs read it
def _table_of_equal(count: int, length: int, align: int, device: torch.device) -> Tensor:
    return _table_of((length,) * count, align, device)


class _Biases:
    """Gradients of the tables of biases: sums of tiles, then along diagonals and by buckets."""

    BLOCK = 64
    WARPS = 8
    SLOTS = triton.next_power_of_2(BUCKETS + 1)

    def __init__(
        self,
        sequences: Sequences,
        positions: Tensor | None,
        times: Tensor | None,
        device: torch.device,
    ):
        self.positions, self.times = positions, times
        self.blocks = triton.cdiv(sequences.longest, self.BLOCK)
        tiles = (self.blocks, GROUPS, self.BLOCK, self.BLOCK) if positions is not None else (0,)
        self.by_tile = torch.zeros(tiles, dtype=torch.float32, device=device)
        slots = (self.blocks, GROUPS, self.SLOTS) if times is not None else (0,)
        self.by_bucket = torch.zeros(slots, dtype=torch.float32, device=device)

    def add(
        self,
        of_scores: Tensor,
        table: Tensor,
        places: "_Places",
        part: _Part,
        heads: int,
    ) -> None:
        if self.positions is None and self.times is None:
            return
        distances = min(self.blocks, part.longest * (ALIGN // self.BLOCK))
        kernels.sum_biases[distances, GROUPS](
            of_scores,
            self.by_tile,
            self.by_bucket,
            table,
            places.starts,
            places.lengths,
            places.steps,
            places.buckets,
            places.request_times,
            places.event_times,
            part.first,
            part.skip * heads,
            part.low,
            part.high,
            part.blocks,
            HEADS=heads,
            BLOCK=self.BLOCK,
            ALIGN=ALIGN,
            POSITION=self.positions is not None,
            TIME=self.times is not None,
            SLOTS=self.SLOTS,
            num_warps=self.WARPS,
        )

    def sums(self, scale: float) -> tuple[Tensor | None, Tensor | None]:
        of_positions = of_times = None
        if self.positions is not None:
            tiles = self.by_tile.sum(1)
            diagonal_sums = torch.zeros_like(self.positions, dtype=torch.float32)
            if self.blocks:
                kernels.sum_diagonals[(self.blocks,)](
                    tiles, diagonal_sums, len(diagonal_sums), self.blocks, BLOCK=self.BLOCK
                )
            of_positions = (diagonal_sums * scale).to(self.positions.dtype)
        if self.times is not None:
            of_times = self.by_bucket.sum((0, 1))[: BUCKETS + 1] * scale
            of_times = of_times.to(self.times.dtype)
        return of_positions, of_times


def _made(x: Tensor, sequences: Sequences, dtype: torch.dtype) -> Tensor:
    """What a kernel writes for every token, shaped as x; zeros for pads."""
    full = sequences.sizes is not None and sum(sequences.sizes) == len(x)
    make = torch.empty if full else torch.zeros
    return make(x.shape, dtype=dtype, device=x.device)


def _flat(x: Tensor) -> Tensor:
    """Vectors of heads side by side; tokens may have gaps between them."""
    _, heads, dim = x.shape
    return x if x.stride(2) == 1 and (heads == 1 or x.stride(1) == dim) else x.contiguous()


def _source(x: Tensor, tiles: Tiles, rows: str) -> Any:
    """What a kernel reads tiles of vectors from."""
    if not tiles["TMA"]:
        return x
    tokens, heads, dim = x.shape
    return TensorDescriptor(x, [tokens, heads * dim], [x.stride(0), 1], [tiles[rows], dim])


def _tile_source(scratch: Tensor, tiles: Tiles, rows: str, columns: str) -> Any:
    """Where a kernel reads and writes tiles of the scratch buffer."""
    if not tiles["TMA"]:
        return scratch
    return TensorDescriptor.from_tensor(scratch, [tiles[rows], tiles[columns]])


class _Places(NamedTuple):
    """What all kernels know of places and times, in their order; None: there is no such bias."""

    starts: Tensor
    lengths: Tensor
    positions: Tensor | None
    time_biases: Tensor | None = None  # by the cell of a time between, see `bucket_steps`
    steps: Tensor | None = None
    buckets: Tensor | None = None
    request_times: Tensor | None = None
    event_times: Tensor | None = None


def _places(
    query: Tensor, sequences: Sequences, position_bias: Tensor | None, time_bias: Tensor | None
) -> _Places:
    if time_bias is None:
        return _Places(sequences.starts, sequences.lengths, position_bias)
    assert sequences.request_times is not None and sequences.event_times is not None
    steps, buckets = bucket_steps(query.device, sequences.request_times.dtype)
    return _Places(
        sequences.starts,
        sequences.lengths,
        position_bias,
        time_bias.float()[buckets],
        steps,
        buckets,
        sequences.request_times,
        sequences.event_times,
    )


def _width(dim: int) -> int:
    return max(16, triton.next_power_of_2(dim))


def _shape(
    query: Tensor, value: Tensor, position_bias: Tensor | None, time_bias: Tensor | None
) -> dict[str, Any]:
    return {
        "HEADS": query.shape[1],
        "DIM": query.shape[2],
        "WIDTH": _width(query.shape[2]),
        "VALUE_DIM": value.shape[2],
        "VALUE_WIDTH": _width(value.shape[2]),
        "POSITION": position_bias is not None,
        "TIME": time_bias is not None,
        "EXACT": query.dtype == torch.float32 or bool(INTERPRETED.value),
        "FULL": is_full(),
    }


def _tiles(kernel: str, query: Tensor, constants: dict[str, Any]) -> Tiles:
    """The tiles of a kernel that were fastest on an H200 (benchmarks/sequence_gpu.py)."""
    names = ("ROWS", "INNER") if kernel == "products" else ("QUERIES", "KEYS")
    widest = max(constants["WIDTH"], constants["VALUE_WIDTH"])
    bias = constants["POSITION"] or constants["TIME"]
    if query.dtype == torch.float32:
        size = 64 if widest <= 64 else 32
        sizes, warps, stages, tma = (size, size), 4, 1, False
    else:
        tma = all(constants[x] in (32, 64, 128, 256) for x in ("DIM", "VALUE_DIM"))
        tma = tma and not INTERPRETED.value
        if kernel == "forward" and not bias:
            sizes, warps, stages = (128, 64), 8, 2 if widest > 128 else 3
        elif kernel == "forward":
            sizes, warps, stages = ((128, 64), 8, 2) if widest == 128 else ((128, 32), 8, 2)
            if widest < 128:
                warps, stages = 4, 3
        elif kernel == "scores":
            sizes, warps, stages = ((64, 64), 4, 2) if bias else ((64, 32), 4, 3)
            if widest < 128:
                sizes, stages = (64, 64), 3
        else:
            sizes, warps, stages = (128, 64), 8 if widest > 64 else 4, 4
    tiles = dict(zip(names, sizes, strict=True))
    return {**tiles, "num_warps": warps, "num_stages": stages, "TMA": tma}
