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

The scratch buffer holds as many samples, or keys of one sample, as fit SCRATCH bytes at a time,
whatever the batch and its lengths. Nothing is added up by atomics: the same numbers twice.
"""

# mypy: disable-error-code=no-untyped-def

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from shoal.kernels.gpu.products import INTERPRETED, is_full, product
from shoal.kernels.hstu import BUCKETS, Sequences, bucket_steps

SCRATCH = 2**30  # bytes of weights and gradients of scores that wait for further kernels
ALIGN = 128  # places of the largest tile; every tile's places divide it
GROUPS = 32  # programs that share the tiles at one distance from the diagonal
LAST = tl.constexpr(BUCKETS)


# fmt: off
@triton.jit
def _rows(source, stride, first, start, head, length, ROWS: tl.constexpr, DIM: tl.constexpr,
          WIDTH: tl.constexpr, TMA: tl.constexpr):
    """Vectors of places from `start` of a sequence on, [ROWS, WIDTH]; by TMA those behind its end
    are whatever follows, else zeros."""
    if TMA:
        return source.load([first + start, head * DIM])
    else:
        row, column = start + tl.arange(0, ROWS), tl.arange(0, WIDTH)
        at = source + (first + row).to(tl.int64)[:, None] * stride + head * DIM + column[None, :]
        return tl.load(at, mask=(row < length)[:, None] & (column < DIM)[None, :], other=0.0)


@triton.jit
def _put(target, value, first, start, head, length, ROWS: tl.constexpr, HEADS: tl.constexpr,
         DIM: tl.constexpr, WIDTH: tl.constexpr):
    row, column = start + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    at = target + (first + row).to(tl.int64)[:, None] * (HEADS * DIM) + head * DIM + column[None, :]
    tl.store(at, value.to(target.dtype.element_ty),
             mask=(row < length)[:, None] & (column < DIM)[None, :])


@triton.jit
def _tanh(x):
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32,
                                     is_pure=True, pack=1)


@triton.jit
def _silu(x, EXACT: tl.constexpr):
    """silu(x); not EXACT: to the 11 bits that halves have."""
    if EXACT:
        return x / (1.0 + tl.exp(-x))
    else:
        half = 0.5 * x
        return half * _tanh(half) + half


@triton.jit
def _silu_and_slope(x, EXACT: tl.constexpr):
    if EXACT:
        share = 1.0 / (1.0 + tl.exp(-x))
        return x * share, share * (1.0 + x * (1.0 - share))
    else:
        half = 0.5 * x
        turn = _tanh(half)
        return half * turn + half, 0.5 * turn + 0.5 + 0.5 * half * (1.0 - turn * turn)


@triton.jit
def _cell(steps, gap):
    """The cell that begins in the bucket of times >= 1: theirs, or the next one."""
    cell = (gap.to(tl.float32).to(tl.int32, bitcast=True) >> 21) - 508
    return cell + (gap >= tl.load(steps + cell)).to(tl.int32)


@triton.jit
def _time_bias(biases, steps, buckets, asked, taken):
    """Of times asked and taken, one of them a column and the other a row: [., .].

    Most tiles have times of two buckets at most: one comparison with what lies between.
    """
    newest = tl.max(taken)
    soonest = tl.min(asked)
    near = _cell(steps, tl.maximum(soonest - newest, 1))
    far = _cell(steps, tl.maximum(tl.max(asked) - tl.min(taken), 1))
    if (soonest >= newest) & (tl.load(buckets + far) - tl.load(buckets + near) <= 1):
        late = asked - tl.load(steps + near)
        bias = tl.where(late >= taken, tl.load(biases + far), tl.load(biases + near))
    else:
        bias = tl.load(biases + _cell(steps, tl.maximum(tl.abs(asked - taken), 1)))
    return bias


@triton.jit
def _moments(times, first, place, length, TIME: tl.constexpr):
    """Times of places; behind the end of a sequence its last one's."""
    if TIME:
        return tl.load(times + first + tl.minimum(place, length - 1))
    else:
        return place


@triton.jit
def _biased(score, positions, biases, steps, buckets, back, asked,
            taken, POSITION: tl.constexpr, TIME: tl.constexpr):
    if POSITION:
        score += tl.load(positions + tl.maximum(back, 0)).to(tl.float32)
    if TIME:
        score += _time_bias(biases, steps, buckets, asked, taken)
    return score


@triton.jit
def _forward(query, key, value, out, starts, lengths, positions, biases, steps, buckets,
             asked_at, taken_at, query_stride, key_stride, value_stride, scale,
             HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
             VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr,
             QUERIES: tl.constexpr, KEYS: tl.constexpr, POSITION: tl.constexpr, TIME: tl.constexpr,
             EXACT: tl.constexpr, FULL: tl.constexpr, TMA: tl.constexpr, SPLIT: tl.constexpr):
    pair = tl.program_id(1)
    sample, head = pair // HEADS, pair % HEADS
    length, first = tl.load(lengths + sample), tl.load(starts + sample)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # those with most keys first
    if start >= length:
        return
    row = start + tl.arange(0, QUERIES)
    asked = _moments(asked_at, first, row, length, TIME)[:, None]
    queries = _rows(query, query_stride, first, start, head, length, QUERIES, DIM, WIDTH, TMA)
    mix = tl.zeros([QUERIES, VALUE_WIDTH], tl.float32)
    end = tl.minimum(length, start + QUERIES)
    middle = start if SPLIT else 0  # keys before it are seen by all queries of the tile
    if SPLIT:
        for place in range(0, middle, KEYS):
            other = place + tl.arange(0, KEYS)
            keys = _rows(key, key_stride, first, place, head, length, KEYS, DIM, WIDTH, TMA)
            score = product(queries, tl.trans(keys), tl.zeros([QUERIES, KEYS], tl.float32), FULL)
            taken = _moments(taken_at, first, other, length, TIME)[None, :]
            score = _biased(score, positions, biases, steps, buckets,
                            row[:, None] - other[None, :], asked, taken, POSITION, TIME)
            weight = _silu(score, EXACT).to(queries.dtype)
            values = _rows(value, value_stride, first, place, head, length, KEYS, VALUE_DIM,
                           VALUE_WIDTH, TMA)
            mix = product(weight, values, mix, FULL)
    for place in range(middle, end, KEYS):
        other = place + tl.arange(0, KEYS)
        keys = _rows(key, key_stride, first, place, head, length, KEYS, DIM, WIDTH, TMA)
        score = product(queries, tl.trans(keys), tl.zeros([QUERIES, KEYS], tl.float32), FULL)
        taken = _moments(taken_at, first, other, length, TIME)[None, :]
        back = row[:, None] - other[None, :]
        score = _biased(score, positions, biases, steps, buckets, back, asked, taken, POSITION,
                        TIME)
        weight = tl.where(back >= 0, _silu(score, EXACT), 0.0).to(queries.dtype)
        values = _rows(value, value_stride, first, place, head, length, KEYS, VALUE_DIM,
                       VALUE_WIDTH, TMA)
        mix = product(weight, values, mix, FULL)
    _put(out, mix * scale, first, start, head, length, QUERIES, HEADS, VALUE_DIM, VALUE_WIDTH)


@triton.jit
def _keep(target, value, line, column, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
          TMA: tl.constexpr):
    """Writes a tile to the scratch buffer."""
    if TMA:
        target.store([line, column], value)
    else:
        lines = (line + tl.arange(0, ROWS)).to(tl.int64)[:, None] * stride
        tl.store(target + lines + column + tl.arange(0, COLUMNS)[None, :], value)


@triton.jit
def _scores(query, key, value, grad, weights, of_scores, starts, lengths, positions, biases, steps,
            buckets, asked_at, taken_at, query_stride, key_stride, value_stride, grad_stride,
            first_sample, first_key, scratch_queries, scratch_keys, HEADS: tl.constexpr,
            DIM: tl.constexpr, WIDTH: tl.constexpr, VALUE_DIM: tl.constexpr,
            VALUE_WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
            ALIGN: tl.constexpr, POSITION: tl.constexpr, TIME: tl.constexpr, EXACT: tl.constexpr,
            FULL: tl.constexpr, TMA: tl.constexpr):
    """Weights of a tile of queries and gradients of its scores; zeros where a key is not seen."""
    pair = tl.program_id(1)
    sample, head = first_sample + pair // HEADS, pair % HEADS
    length, first = tl.load(lengths + sample), tl.load(starts + sample)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    if start >= length:
        return
    row = start + tl.arange(0, QUERIES)
    asked = _moments(asked_at, first, row, length, TIME)[:, None]
    queries = _rows(query, query_stride, first, start, head, length, QUERIES, DIM, WIDTH, TMA)
    grads = _rows(grad, grad_stride, first, start, head, length, QUERIES, VALUE_DIM, VALUE_WIDTH,
                  TMA)
    last_seen = tl.where(row < length, row, -1)[:, None]
    line = pair * scratch_queries + start
    end = tl.minimum(tl.minimum(length, (start // ALIGN + 1) * ALIGN), first_key + scratch_keys)
    for place in range(first_key, end, KEYS):
        other = place + tl.arange(0, KEYS)
        keys = _rows(key, key_stride, first, place, head, length, KEYS, DIM, WIDTH, TMA)
        score = product(queries, tl.trans(keys), tl.zeros([QUERIES, KEYS], tl.float32), FULL)
        values = _rows(value, value_stride, first, place, head, length, KEYS, VALUE_DIM,
                       VALUE_WIDTH, TMA)
        of_weight = product(grads, tl.trans(values), tl.zeros([QUERIES, KEYS], tl.float32), FULL)
        taken = _moments(taken_at, first, other, length, TIME)[None, :]
        score = _biased(score, positions, biases, steps, buckets, row[:, None] - other[None, :],
                        asked, taken, POSITION, TIME)
        seen = last_seen >= other[None, :]
        weight, slope = _silu_and_slope(score, EXACT)
        weight = tl.where(seen, weight, 0.0).to(queries.dtype)
        of_score = tl.where(seen, of_weight * slope, 0.0).to(queries.dtype)
        _keep(weights, weight, line, place - first_key, scratch_keys, QUERIES, KEYS, TMA)
        _keep(of_scores, of_score, line, place - first_key, scratch_keys, QUERIES, KEYS, TMA)


@triton.jit
def _multiply(scratch, vectors, out, starts, lengths, stride, scale, first_sample, first_key,
              scratch_queries, scratch_keys, HEADS: tl.constexpr, DIM: tl.constexpr,
              WIDTH: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, ALIGN: tl.constexpr,
              FULL: tl.constexpr, TMA: tl.constexpr, TRANSPOSED: tl.constexpr, ADD: tl.constexpr):
    """A tile of gradients: scratch @ vectors of keys, or TRANSPOSED @ vectors of queries.

    ADD: to those of keys before.
    """
    pair = tl.program_id(1)
    sample, head = first_sample + pair // HEADS, pair % HEADS
    length, first = tl.load(lengths + sample), tl.load(starts + sample)
    if TRANSPOSED:  # those with most queries first
        start = first_key + tl.program_id(0) * ROWS
        begin, end = start // ALIGN * ALIGN, length
    else:
        start = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
        begin = first_key
        end = tl.minimum(tl.minimum(length, start + ROWS), first_key + scratch_keys)
    if (start >= length) | (begin >= end):
        return
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for place in range(begin, end, INNER):
        if TRANSPOSED:
            line, column = pair * scratch_queries + place, start - first_key
        else:
            line, column = pair * scratch_queries + start, place - first_key
        if TMA:
            tile = scratch.load([line, column])
        else:
            LINES: tl.constexpr = INNER if TRANSPOSED else ROWS
            COLUMNS: tl.constexpr = ROWS if TRANSPOSED else INNER
            lines = (line + tl.arange(0, LINES)).to(tl.int64)[:, None] * scratch_keys
            tile = tl.load(scratch + lines + column + tl.arange(0, COLUMNS)[None, :])
        if TRANSPOSED:
            tile = tl.trans(tile)
        others = _rows(vectors, stride, first, place, head, length, INNER, DIM, WIDTH, TMA)
        total = product(tile, others, total, FULL)
    total *= scale
    if ADD:
        total += _rows(out, HEADS * DIM, first, start, head, length, ROWS, DIM, WIDTH, False)
    _put(out, total, first, start, head, length, ROWS, HEADS, DIM, WIDTH)


@triton.jit
def _bias_backward(of_scores, by_tile, by_bucket, starts, lengths, steps, buckets, asked_at,
                   taken_at, first_sample, samples, first_key, scratch_queries, scratch_keys,
                   HEADS: tl.constexpr, BLOCK: tl.constexpr, POSITION: tl.constexpr,
                   TIME: tl.constexpr, SLOTS: tl.constexpr):
    """Adds the tiles at one distance from the diagonal up: by_tile [distances, groups, BLOCK,
    BLOCK]; and all by bucket: by_bucket [distances, groups, SLOTS]."""
    back, slot = tl.program_id(0), tl.arange(0, SLOTS)
    mine = back * tl.num_programs(1) + tl.program_id(1)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    histogram = tl.zeros([SLOTS], tl.float32)
    blocks = scratch_keys // BLOCK
    for number in range(tl.program_id(1), samples * blocks, tl.num_programs(1)):
        local, block = number // blocks, number % blocks
        length = tl.load(lengths + first_sample + local)
        start = first_key + block * BLOCK
        place = start + back * BLOCK
        if place < length:
            row, other = place + tl.arange(0, BLOCK), start + tl.arange(0, BLOCK)
            seen = tl.where(row < length, row, -1)[:, None] >= other[None, :]
            tile = tl.zeros([BLOCK, BLOCK], tl.float32)
            for head in range(HEADS):
                lines = ((local * HEADS + head) * scratch_queries + row).to(tl.int64)
                at = of_scores + lines[:, None] * scratch_keys + (other - first_key)[None, :]
                tile += tl.load(at, mask=seen, other=0.0).to(tl.float32)
            total += tile
            if TIME:
                first = tl.load(starts + first_sample + local)
                asked = _moments(asked_at, first, row, length, True)[:, None]
                taken = _moments(taken_at, first, other, length, True)[None, :]
                gap = tl.maximum(tl.abs(asked - taken), 1)
                bucket = tl.load(buckets + _cell(steps, gap))
                least = tl.min(tl.where(seen, bucket, LAST))
                most = tl.max(tl.where(seen, bucket, 0))
                for one in range(least, most + 1):
                    found = tl.sum(tl.where(bucket == one, tile, 0.0))
                    histogram += tl.where(slot == one, found, 0.0)
    if POSITION:
        inside = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        at = by_tile + mine.to(tl.int64) * BLOCK * BLOCK + inside
        tl.store(at, tl.load(at) + total)
    if TIME:
        at = by_bucket + mine * SLOTS + slot
        tl.store(at, tl.load(at) + histogram)


@triton.jit
def _diagonals(tiles, out, count, blocks, BLOCK: tl.constexpr):
    """Sums along diagonals: tiles [blocks, BLOCK queries, BLOCK keys] -> [count]."""
    which = tl.program_id(0)
    distance = which * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for back in range(which, tl.minimum(which + 2, blocks)):
        column = row[:, None] - (distance - back * BLOCK)[None, :]
        at = tiles + back * BLOCK * BLOCK + row[:, None] * BLOCK + column
        total += tl.sum(tl.load(at, mask=(column >= 0) & (column < BLOCK), other=0.0), 0)
    tl.store(out + distance, total, mask=distance < count)
# fmt: on


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
    how = _shape(query, value, position_bias, time_bias)
    tiles = tiles or _tiles("forward", query, how)
    out = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    grid = (triton.cdiv(sequences.longest, tiles["QUERIES"]), len(sequences.lengths) * how["HEADS"])
    if grid[0] * grid[1] and len(query):
        _forward[grid](
            _source(query, tiles, "QUERIES"),
            _source(key, tiles, "KEYS"),
            _source(value, tiles, "KEYS"),
            out,
            *_places(query, sequences, position_bias, time_bias),
            query.stride(0),
            key.stride(0),
            value.stride(0),
            1.0 / n,
            **how,
            **{"SPLIT": False, **tiles},
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
    how = _shape(query, value, position_bias, time_bias)
    score_tiles = score_tiles or _tiles("scores", query, how)
    product_tiles = product_tiles or _tiles("products", query, how)
    heads, samples = how["HEADS"], len(sequences.lengths) if len(query) else 0
    scratch = _Scratch(sequences, heads, query)
    of_query, of_key, of_value = (torch.zeros_like(x) for x in (query, key, value))
    if scratch.parts > 1:
        of_query = of_query.float()
    biases = _Biases(sequences, position_bias, time_bias, query.device)
    places = _places(query, sequences, position_bias, time_bias)
    for first_sample in range(0, samples, scratch.samples):
        count = min(scratch.samples, samples - first_sample)
        for first_key in range(0, sequences.longest, scratch.keys):
            part = (first_sample, first_key, scratch.queries, scratch.keys)
            grid = (triton.cdiv(sequences.longest, score_tiles["QUERIES"]), count * heads)
            _scores[grid](
                _source(query, score_tiles, "QUERIES"),
                _source(key, score_tiles, "KEYS"),
                _source(value, score_tiles, "KEYS"),
                _source(grad, score_tiles, "QUERIES"),
                _tile_source(scratch.weights, score_tiles, "QUERIES", "KEYS"),
                _tile_source(scratch.of_scores, score_tiles, "QUERIES", "KEYS"),
                *places,
                query.stride(0),
                key.stride(0),
                value.stride(0),
                grad.stride(0),
                *part,
                ALIGN=ALIGN,
                **how,
                **score_tiles,
            )
            again = first_key > 0
            for made, vectors, out, transposed, add in (
                (scratch.of_scores, key, of_query, False, again),
                (scratch.of_scores, query, of_key, True, False),
                (scratch.weights, grad, of_value, True, False),
            ):
                _products(
                    made, vectors, out, sequences, part, count, 1.0 / n, product_tiles,
                    TRANSPOSED=transposed, ADD=add, FULL=how["FULL"],
                )  # fmt: skip
            biases.add(scratch, places, count, part, heads)
    of_positions, of_times = biases.sums(1.0 / n)
    return of_query.to(query.dtype), of_key, of_value, of_positions, of_times


def _products(
    scratch: Tensor,
    vectors: Tensor,
    out: Tensor,
    sequences: Sequences,
    part: tuple[int, int, int, int],
    samples: int,
    scale: float,
    tiles: Tiles,
    **how: bool,
) -> None:
    heads, dim = vectors.shape[1:]
    places = sequences.longest
    if how["TRANSPOSED"]:
        places = min(places - part[1], part[3])
        sizes = ("INNER", "ROWS")
    else:
        sizes = ("ROWS", "INNER")
    _multiply[triton.cdiv(places, tiles["ROWS"]), samples * heads](
        _tile_source(scratch, tiles, *sizes),
        _source(vectors, tiles, "INNER"),
        out,
        sequences.starts,
        sequences.lengths,
        vectors.stride(0),
        scale,
        *part,
        HEADS=heads,
        DIM=dim,
        WIDTH=_width(dim),
        ALIGN=ALIGN,
        **how,
        **tiles,
    )


class _Scratch:
    """Weights and gradients of scores of some samples and keys: [samples, heads, queries, keys]."""

    def __init__(self, sequences: Sequences, heads: int, query: Tensor):
        blocks = triton.cdiv(max(sequences.longest, 1), ALIGN)
        room = SCRATCH // (2 * query.element_size() * ALIGN * ALIGN)  # tiles
        keys = max(1, min(blocks, room // (heads * blocks)))
        self.queries, self.keys = blocks * ALIGN, keys * ALIGN
        self.parts = triton.cdiv(blocks, keys)
        self.samples = max(1, min(len(sequences.lengths), room // (heads * blocks * keys)))
        size = (self.samples * heads * self.queries, self.keys)
        self.weights = torch.empty(size, dtype=query.dtype, device=query.device)
        self.of_scores = torch.empty_like(self.weights)


class _Biases:
    """Gradients of the tables of biases: sums of tiles, then along diagonals and by buckets."""

    BLOCK = 64
    WARPS = 4
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
        scratch: _Scratch,
        places: tuple[Any, ...],
        samples: int,
        part: tuple[int, ...],
        heads: int,
    ) -> None:
        if self.positions is None and self.times is None:
            return
        starts, lengths, _, _, steps, buckets, asked, taken = places
        first_sample, *which = part
        _bias_backward[self.blocks, GROUPS](
            scratch.of_scores,
            self.by_tile,
            self.by_bucket,
            starts,
            lengths,
            steps,
            buckets,
            asked,
            taken,
            first_sample,
            samples,
            *which,
            HEADS=heads,
            BLOCK=self.BLOCK,
            POSITION=self.positions is not None,
            TIME=self.times is not None,
            SLOTS=self.SLOTS,
            num_warps=self.WARPS,
        )

    def sums(self, scale: float) -> tuple[Tensor | None, Tensor | None]:
        of_positions = of_times = None
        if self.positions is not None:
            tiles = self.by_tile.sum(1)
            found = torch.zeros_like(self.positions, dtype=torch.float32)
            if self.blocks:
                _diagonals[(self.blocks,)](tiles, found, len(found), self.blocks, BLOCK=self.BLOCK)
            of_positions = (found * scale).to(self.positions.dtype)
        if self.times is not None:
            of_times = self.by_bucket.sum((0, 1))[: BUCKETS + 1] * scale
            of_times = of_times.to(self.times.dtype)
        return of_positions, of_times


def _flat(x: Tensor) -> Tensor:
    """Vectors of heads side by side; tokens may be further apart."""
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


def _places(
    query: Tensor, sequences: Sequences, position_bias: Tensor | None, time_bias: Tensor | None
) -> tuple[Any, ...]:
    """What all kernels know of places and times; None where there is no such bias."""
    where = (sequences.starts, sequences.lengths, position_bias)
    if time_bias is None:
        return (*where, None, None, None, None, None)
    assert sequences.asked is not None and sequences.taken is not None
    steps, buckets = bucket_steps(query.device, sequences.asked.dtype)
    return (*where, time_bias.float()[buckets], steps, buckets, sequences.asked, sequences.taken)


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


def _tiles(kernel: str, query: Tensor, how: dict[str, Any]) -> Tiles:
    """The tiles of a kernel that were fastest on an H200 (benchmarks/sequence_gpu.py)."""
    names = ("ROWS", "INNER") if kernel == "products" else ("QUERIES", "KEYS")
    if query.dtype == torch.float32:
        size = 64 if max(how["WIDTH"], how["VALUE_WIDTH"]) <= 64 else 32
        sizes, warps, stages, tma = (size, size), 4, 1, False
    else:
        tma = all(how[x] in (32, 64, 128, 256) for x in ("DIM", "VALUE_DIM"))
        tma = tma and not INTERPRETED.value
        sizes, warps, stages = (128, 64), 8, {"forward": 2, "scores": 1, "products": 3}[kernel]
    tiles = dict(zip(names, sizes, strict=True))
    return {**tiles, "num_warps": warps, "num_stages": stages, "TMA": tma}
