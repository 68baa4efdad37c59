"""The kernels of HSTU's attention, tile by tile; shoal/kernels/gpu/hstu.py launches them.

Programs read what is theirs from a table of blocks of ALIGN places, int32 [blocks, 4]:

    sample    which sequence
    block     which of its blocks: the last, which sees most, stands first
    base      scratch tiles of one head of all sequences before it
    count     blocks of the sequence

The scratch buffer holds square tiles of ALIGN places, [tiles * ALIGN, ALIGN]: of each sequence its
columns of keys one after another, of a column its heads, and of a head the blocks of queries from
the diagonal on. Nothing is kept for keys that no query sees.

    count 3:   0 . .     of the first head, then of the next; then of column 1
               1 . .
               2 . .
"""

# mypy: disable-error-code=no-untyped-def

import triton
import triton.language as tl

from shoal.kernels.common.sequences import BUCKETS
from shoal.kernels.gpu.products import product

LAST = tl.constexpr(BUCKETS)
PART = ["first_block", "skip", "low", "high"]  # of a launch: compiled once for all of them


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
def _time_bias(biases, steps, buckets, request_time, event_time):
    """The bias of request and event times, one of them a column and the other a row: [., .].

    Most tiles have times of two buckets at most: one comparison with what lies between.
    """
    newest = tl.max(event_time)
    soonest = tl.min(request_time)
    near = _cell(steps, tl.maximum(soonest - newest, 1))
    far = _cell(steps, tl.maximum(tl.max(request_time) - tl.min(event_time), 1))
    if (soonest >= newest) & (tl.load(buckets + far) - tl.load(buckets + near) <= 1):
        late = request_time - tl.load(steps + near)
        bias = tl.where(late >= event_time, tl.load(biases + far), tl.load(biases + near))
    else:
        bias = tl.load(biases + _cell(steps, tl.maximum(tl.abs(request_time - event_time), 1)))
    return bias


@triton.jit
def _moments(times, first, place, length, TIME: tl.constexpr):
    """Times of places; behind the end of a sequence its last one's."""
    if TIME:
        return tl.load(times + first + tl.minimum(place, length - 1))
    else:
        return place


@triton.jit
def _biased(score, positions, biases, steps, buckets, back, request_time,
            event_time, POSITION: tl.constexpr, TIME: tl.constexpr):
    if POSITION:
        score += tl.load(positions + tl.maximum(back, 0)).to(tl.float32)
    if TIME:
        score += _time_bias(biases, steps, buckets, request_time, event_time)
    return score


@triton.jit
def _block(table, number):
    at = table + number * 4
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)


@triton.jit
def _line(base, count, row, column, head, skip, HEADS: tl.constexpr, ALIGN: tl.constexpr):
    """The first line of a tile in the scratch buffer, of blocks `row` and `column`."""
    before = base + column * count - column * (column - 1) // 2
    return (before * HEADS + head * (count - column) + row - column - skip) * ALIGN


@triton.jit
def attend(query, key, value, out, table, starts, lengths, positions, biases, steps, buckets,
           request_times, event_times, query_stride, key_stride, value_stride, scale,
           HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
           VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr, ALIGN: tl.constexpr,
           QUERIES: tl.constexpr, KEYS: tl.constexpr, POSITION: tl.constexpr, TIME: tl.constexpr,
           EXACT: tl.constexpr, FULL: tl.constexpr, TMA: tl.constexpr):
    """The output of a tile of queries of one head."""
    EACH: tl.constexpr = ALIGN // QUERIES
    head, inside = tl.program_id(1), tl.program_id(0) % EACH
    sample, block, _, _ = _block(table, tl.program_id(0) // EACH)
    length, first = tl.load(lengths + sample), tl.load(starts + sample)
    start = block * ALIGN + (EACH - 1 - inside) * QUERIES
    if start >= length:
        return
    row = start + tl.arange(0, QUERIES)
    request_time = _moments(request_times, first, row, length, TIME)[:, None]
    queries = _rows(query, query_stride, first, start, head, length, QUERIES, DIM, WIDTH, TMA)
    mix = tl.zeros([QUERIES, VALUE_WIDTH], tl.float32)
    end = tl.minimum(length, start + QUERIES)
    for place in range(0, end, KEYS):
        other = place + tl.arange(0, KEYS)
        keys = _rows(key, key_stride, first, place, head, length, KEYS, DIM, WIDTH, TMA)
        score = product(queries, tl.trans(keys), tl.zeros([QUERIES, KEYS], tl.float32), FULL)
        event_time = _moments(event_times, first, other, length, TIME)[None, :]
        back = row[:, None] - other[None, :]
        score = _biased(score, positions, biases, steps, buckets, back, request_time,
                        event_time, POSITION, TIME)
        weight = tl.where(back >= 0, _silu(score, EXACT), 0.0).to(queries.dtype)
        values = _rows(value, value_stride, first, place, head, length, KEYS, VALUE_DIM,
                       VALUE_WIDTH, TMA)
        mix = product(weight, values, mix, FULL)
    _put(out, mix * scale, first, start, head, length, QUERIES, HEADS, VALUE_DIM, VALUE_WIDTH)


@triton.jit
def _keep(target, value, line, column, ALIGN: tl.constexpr, ROWS: tl.constexpr,
          COLUMNS: tl.constexpr, TMA: tl.constexpr):
    """Writes a tile to the scratch buffer."""
    if TMA:
        target.store([line, column], value)
    else:
        lines = (line + tl.arange(0, ROWS)).to(tl.int64)[:, None] * ALIGN
        tl.store(target + lines + column + tl.arange(0, COLUMNS)[None, :], value)


@triton.jit(do_not_specialize=[*PART])
def write_scores(query, key, value, grad, weights, of_scores, table, starts, lengths, positions,
                 biases, steps, buckets, request_times, event_times, query_stride, key_stride,
                 value_stride, grad_stride, first_block, skip, low, high, HEADS: tl.constexpr,
                 DIM: tl.constexpr, WIDTH: tl.constexpr, VALUE_DIM: tl.constexpr,
                 VALUE_WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
                 ALIGN: tl.constexpr, WHOLE: tl.constexpr, POSITION: tl.constexpr,
                 TIME: tl.constexpr, EXACT: tl.constexpr, FULL: tl.constexpr, TMA: tl.constexpr):
    """Weights of a tile of queries and gradients of its scores; zeros where a key is not seen.

    Written up to a multiple of WHOLE places: `multiply` reads so much.
    """
    EACH: tl.constexpr = ALIGN // QUERIES
    head, inside = tl.program_id(1), tl.program_id(0) % EACH
    sample, block, base, count = _block(table, first_block + tl.program_id(0) // EACH)
    length, first = tl.load(lengths + sample), tl.load(starts + sample)
    inside = (EACH - 1 - inside) * QUERIES
    start = block * ALIGN + inside
    whole = (length + WHOLE - 1) // WHOLE * WHOLE
    if start >= whole:
        return
    row = start + tl.arange(0, QUERIES)
    request_time = _moments(request_times, first, row, length, TIME)[:, None]
    queries = _rows(query, query_stride, first, start, head, length, QUERIES, DIM, WIDTH, TMA)
    grads = _rows(grad, grad_stride, first, start, head, length, QUERIES, VALUE_DIM, VALUE_WIDTH,
                  TMA)
    last_seen = tl.where(row < length, row, -1)[:, None]
    end = tl.minimum(tl.minimum(whole, (block + 1) * ALIGN), high * ALIGN)
    for place in range(low * ALIGN, end, KEYS):
        other = place + tl.arange(0, KEYS)
        keys = _rows(key, key_stride, first, place, head, length, KEYS, DIM, WIDTH, TMA)
        score = product(queries, tl.trans(keys), tl.zeros([QUERIES, KEYS], tl.float32), FULL)
        values = _rows(value, value_stride, first, place, head, length, KEYS, VALUE_DIM,
                       VALUE_WIDTH, TMA)
        of_weight = product(grads, tl.trans(values), tl.zeros([QUERIES, KEYS], tl.float32), FULL)
        event_time = _moments(event_times, first, other, length, TIME)[None, :]
        score = _biased(score, positions, biases, steps, buckets, row[:, None] - other[None, :],
                        request_time, event_time, POSITION, TIME)
        seen = last_seen >= other[None, :]
        weight, slope = _silu_and_slope(score, EXACT)
        weight = tl.where(seen, weight, 0.0).to(queries.dtype)
        of_score = tl.where(seen, of_weight * slope, 0.0).to(queries.dtype)
        line = _line(base, count, block, place // ALIGN, head, skip, HEADS, ALIGN) + inside
        _keep(weights, weight, line, place % ALIGN, ALIGN, QUERIES, KEYS, TMA)
        _keep(of_scores, of_score, line, place % ALIGN, ALIGN, QUERIES, KEYS, TMA)


@triton.jit(do_not_specialize=[*PART])
def multiply(scratch, vectors, out, table, starts, lengths, stride, scale, first_block, skip, low,
             high, HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
             INNER: tl.constexpr, ALIGN: tl.constexpr, FULL: tl.constexpr, TMA: tl.constexpr,
             TRANSPOSED: tl.constexpr, ADD: tl.constexpr):
    """A tile of gradients: scratch @ vectors of keys, or TRANSPOSED @ vectors of queries.

    ADD: to those of keys before.
    """
    EACH: tl.constexpr = ALIGN // ROWS
    head, inside = tl.program_id(1), tl.program_id(0) % EACH
    sample, block, base, count = _block(table, first_block + tl.program_id(0) // EACH)
    length, first = tl.load(lengths + sample), tl.load(starts + sample)
    if TRANSPOSED:  # those with most queries first
        block, inside = count - 1 - block, inside * ROWS
        start = block * ALIGN + inside
        begin, end = block * ALIGN, length
        if (block < low) | (block >= high):
            end = begin
    else:
        inside = (EACH - 1 - inside) * ROWS
        start = block * ALIGN + inside
        begin, end = low * ALIGN, tl.minimum(tl.minimum(length, start + ROWS), high * ALIGN)
    if (start >= length) | (begin >= end):
        return
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for place in range(begin, end, INNER):
        if TRANSPOSED:
            line = _line(base, count, block, block, head, skip, HEADS, ALIGN) + place - begin
            column = inside
        else:
            line = _line(base, count, block, place // ALIGN, head, skip, HEADS, ALIGN) + inside
            column = place % ALIGN
        if TMA:
            tile = scratch.load([line, column])
        else:
            LINES: tl.constexpr = INNER if TRANSPOSED else ROWS
            COLUMNS: tl.constexpr = ROWS if TRANSPOSED else INNER
            lines = (line + tl.arange(0, LINES)).to(tl.int64)[:, None] * ALIGN
            tile = tl.load(scratch + lines + column + tl.arange(0, COLUMNS)[None, :])
        if TRANSPOSED:
            tile = tl.trans(tile)
        others = _rows(vectors, stride, first, place, head, length, INNER, DIM, WIDTH, TMA)
        total = product(tile, others, total, FULL)
    total *= scale
    if ADD:
        total += _rows(out, HEADS * DIM, first, start, head, length, ROWS, DIM, WIDTH, False)
    _put(out, total, first, start, head, length, ROWS, HEADS, DIM, WIDTH)


@triton.jit(do_not_specialize=[*PART, "blocks"])
def sum_biases(of_scores, by_tile, by_bucket, table, starts, lengths, steps, buckets, request_times,
               event_times, first_block, skip, low, high, blocks, HEADS: tl.constexpr,
               BLOCK: tl.constexpr, ALIGN: tl.constexpr, POSITION: tl.constexpr,
               TIME: tl.constexpr, SLOTS: tl.constexpr):
    """Adds the tiles at one distance from the diagonal up: by_tile [distances, groups, BLOCK,
    BLOCK]; and all by bucket: by_bucket [distances, groups, SLOTS]."""
    EACH: tl.constexpr = ALIGN // BLOCK
    back, slot = tl.program_id(0), tl.arange(0, SLOTS)
    mine = back * tl.num_programs(1) + tl.program_id(1)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    histogram = tl.zeros([SLOTS], tl.float32)
    for number in range(tl.program_id(1), blocks * EACH, tl.num_programs(1)):
        sample, block, base, count = _block(table, first_block + number // EACH)
        length = tl.load(lengths + sample)
        start = block * ALIGN + number % EACH * BLOCK
        place = start + back * BLOCK
        if (place < length) & (block >= low) & (block < high):
            row, other = place + tl.arange(0, BLOCK), start + tl.arange(0, BLOCK)
            seen = tl.where(row < length, row, -1)[:, None] >= other[None, :]
            tile = tl.zeros([BLOCK, BLOCK], tl.float32)
            for head in range(HEADS):
                line = _line(base, count, place // ALIGN, block, head, skip, HEADS, ALIGN)
                lines = (line + row % ALIGN).to(tl.int64)[:, None] * ALIGN
                at = of_scores + lines + (other % ALIGN)[None, :]
                tile += tl.load(at, mask=seen, other=0.0).to(tl.float32)
            total += tile
            if TIME:
                first = tl.load(starts + sample)
                request_time = _moments(request_times, first, row, length, True)[:, None]
                event_time = _moments(event_times, first, other, length, True)[None, :]
                gap = tl.maximum(tl.abs(request_time - event_time), 1)
                bucket = tl.load(buckets + _cell(steps, gap))
                least = tl.min(tl.where(seen, bucket, LAST))
                most = tl.max(tl.where(seen, bucket, 0))
                for current in range(least, most + 1):
                    bucket_sum = tl.sum(tl.where(bucket == current, tile, 0.0))
                    histogram += tl.where(slot == current, bucket_sum, 0.0)
    if POSITION:
        inside = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        at = by_tile + mine.to(tl.int64) * BLOCK * BLOCK + inside
        tl.store(at, tl.load(at) + total)
    if TIME:
        at = by_bucket + mine * SLOTS + slot
        tl.store(at, tl.load(at) + histogram)


@triton.jit
def sum_diagonals(tiles, out, count, blocks, BLOCK: tl.constexpr):
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
