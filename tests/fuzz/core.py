"""The native core: every function that it exports, with arrays of the stated sizes and any content.

Under the sanitizers a read or a write outside of an array ends the process. Sizes are given as they
are, because addresses are all that the core has; what stands in arrays and lists may be anything.
"""

import ctypes
import importlib.util
import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from fuzz.mutate import EDGES, mutate

_held: list[np.ndarray] = []
Call = Callable[[Any, random.Random], None]
MEMORY = os.memfd_create("fuzz")  # of a table that ranks share; too small for some
os.truncate(MEMORY, 1 << 12)
REFUSED = (ValueError, TypeError, IndexError, MemoryError, OverflowError)


def load(path: str | None) -> Any:
    """The core that a file holds (None: the one that shoal uses)."""
    if path is None:
        from shoal.kernels.core import load_core

        return load_core()
    spec = importlib.util.spec_from_file_location("_core", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def once(core: Any, rng: random.Random) -> str:
    """One call of one function, or of several that belong together."""
    name = rng.choice(list(CALLS))
    _held.clear()
    with suppress(*REFUSED):
        CALLS[name](core, rng)
    return name


# ---- arguments ----------------------------------------------------------------------------------


def numbers(rng: random.Random, n: int, limit: int) -> np.ndarray:
    """int64 [n]: mostly below the limit, at times an edge."""
    made = np.array([rng.randrange(max(limit, 1)) for _ in range(n)], np.int64)
    if n and rng.random() < 0.3:
        made[rng.randrange(n)] = rng.choice((limit, limit - 1, *EDGES[:-1], -(2**63)))
    return made


def floats(rng: random.Random, *shape: int) -> np.ndarray:
    made = np.full(shape, 0.5, np.float32)
    if made.size and rng.random() < 0.2:
        made.reshape(-1)[rng.randrange(made.size)] = rng.choice((np.nan, np.inf, -1e38, 0))
    return made


def at(rng: random.Random, array: np.ndarray) -> int:
    """Its address; at times none. The array lives until the call has ended."""
    _held.append(array)
    return 0 if rng.random() < 0.02 else array.ctypes.data


def uneven(rng: random.Random, given: list[Any]) -> list[Any]:
    """The list, or at times one of another length."""
    if rng.random() < 0.05:
        return given[:-1] if rng.random() < 0.5 else given + given[:1]
    return given


def threads(rng: random.Random) -> int:
    return rng.choice((1, 1, 1, 2, 0, -1))


def table(core: Any, rng: random.Random) -> tuple[Any, int, int, bool, int]:
    """(table, dim, rows, counted, optimizer)"""
    dim, rows = rng.choice((1, 2, 3, 8, 17)), rng.choice((-1, -1, 0, 1, 5, 100))
    kind, counted = rng.randrange(8), rng.random() < 0.3
    state = uneven(rng, [(bool(PER_VALUE[kind]), 0.1)] * PIECES[kind])
    bloom = rng.choice((0, 64)) if counted else 0
    made = core.make_table(
        *(dim, rows, rng.random() < 0.5, 0, rng.random() < 0.3, numbering(rng, rows)),
        *(rng.randrange(3), 7, 0.1),
        *(core.Hyper(kind), state, counted, [1.0, 1.0, 1.0], bloom, threads(rng)),
    )
    return made, dim, rows, counted, kind


def numbering(rng: random.Random, rows: int) -> list[int]:
    """Which rows of a larger table these are: mostly right, or nothing said."""
    if rows < 0 or rng.random() < 0.5:
        return []
    if rng.random() < 0.2:
        return [rng.choice(EDGES) for _ in range(rng.randrange(5))]
    return [rng.randrange(9), rng.choice((1, 3)), rows + 9]


def some_ids(rng: random.Random, rows: int) -> np.ndarray:
    return numbers(rng, rng.choice((0, 1, 3, 70)), rows if rows >= 0 else 50)


def bags_of(rng: random.Random, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts of bags of so many places, mostly right, and a weight for each place."""
    count = rng.choice((0, 1, 4)) if places else 0
    cuts = sorted(rng.randrange(places + 1) for _ in range(max(count - 1, 0)))
    starts = np.array([0, *cuts, *([places] if count else [])], np.int64)
    if rng.random() < 0.2:
        starts[rng.randrange(len(starts))] = rng.choice((places + 1, -1, *EDGES[:-1]))
    return starts, floats(rng, places)


PIECES = (0, 1, 1, 1, 2, 2, 2, 1)
PER_VALUE = (1, 1, 1, 0, 1, 1, 1, 1)


# ---- calls --------------------------------------------------------------------------------------


def make_table(core: Any, rng: random.Random) -> None:
    dim, rows = rng.choice((0, -1, 1, 4, 2**31 - 1)), rng.choice((*EDGES, 5))
    if dim * max(rows, 0) > 1 << 20 and rows < 2**53:  # it would be made, and take long
        rows = 5 if dim < 100 else 2**62
    core.make_table(
        *(dim, rows, False, 0, rng.random() < 0.5, numbering(rng, rows)),
        *(rng.choice((0, 1, 2, 3, -1)), 1, 0.1),
        *(core.Hyper(rng.randrange(-1, 9)), [(True, 0.0)] * rng.randrange(3), False, [0.0] * 3, 0),
        threads(rng),
    )


def rows_of_tables(core: Any, rng: random.Random) -> None:
    made = [table(core, rng) for _ in range(rng.choice((1, 1, 2)))]
    for _ in range(rng.choice((1, 3))):
        ids = [some_ids(rng, rows) for _, _, rows, _, _ in made]
        out = [floats(rng, len(i), dim) for i, (_, dim, *_) in zip(ids, made)]
        tables, counts = [one for one, *_ in made], [len(i) for i in ids]
        where = uneven(rng, [at(rng, i) for i in ids])
        bags = [bags_of(rng, len(i)) for i in ids]
        starts, weights = [at(rng, s) for s, _ in bags], [at(rng, w) for _, w in bags]
        lists = [len(s) - 1 for s, _ in bags]
        sums = [floats(rng, n, dim) for n, (_, dim, *_) in zip(lists, made)]
        if rng.random() < 0.3:
            core.pull_bags(
                *(tables, where, counts, uneven(rng, starts), uneven(rng, lists), weights),
                *(uneven(rng, [at(rng, s) for s in sums]), threads(rng)),
            )
            continue
        if rng.random() < 0.4:
            core.pull(tables, where, uneven(rng, counts), [at(rng, o) for o in out], threads(rng))
            continue
        pooled, none = rng.random() < 0.5, [0] * len(made)
        given = (sums, lists) if pooled else (out, counts)
        core.push(
            *(tables, where, counts, [at(rng, o) for o in given[0]], uneven(rng, given[1])),
            *((uneven(rng, starts), weights) if pooled else (none, none)),
            *(none, none),
            uneven(rng, [core.StepNumbers(size=0.1, eps=1e-8, lr=0.1, keep=1.0)] * len(made)),
            uneven(rng, [1] * len(made)),
            threads(rng),
        )


def read_and_write(core: Any, rng: random.Random) -> None:
    one, dim, rows, counted, kind = table(core, rng)
    ids = some_ids(rng, rows)
    n = len(ids)
    states = [floats(rng, n, dim if PER_VALUE[kind] else 1) for _ in range(PIECES[kind])]
    counters = [floats(rng, n), floats(rng, n), numbers(rng, n, 9)] if counted else []
    values = floats(rng, n, dim)
    given = (at(rng, ids), n, at(rng, values))
    where = uneven(rng, [at(rng, s) for s in states])
    more = uneven(rng, [at(rng, c) for c in counters])
    one.write(*given, where, more)
    one.read(*given, where, more)
    pending = [floats(rng, n), floats(rng, n), numbers(rng, n, 9)]
    one.write_pending(at(rng, ids), n, uneven(rng, [at(rng, p) for p in pending]))
    one.read_pending(at(rng, ids), n, uneven(rng, [at(rng, p) for p in pending]))


def life_of_a_table(core: Any, rng: random.Random) -> None:
    one, *_ = table(core, rng)
    mark = one.mark()
    since = rng.choice((0, mark, mark + 1, 2**64 - 1))
    for ids in (one.sorted_ids(), one.changed_ids(since), one.dropped_ids(since)):
        assert len(ids) % 8 == 0
    one.pending_ids()
    one.decay(rng.choice((0.0, 0.5, float("nan"))))
    one.shrink(0.0, 0.0, rng.choice((-1, 0, 5)), rng.choice((-1, 0, 5)), rng.random() < 0.5, 9)
    counters = np.zeros(100, np.uint8)
    start = rng.choice((0, 1, 63, 64, 2**63, 2**64 - 1))
    one.read_bloom(start, rng.choice((0, 1, 64, 100)), at(rng, counters))
    one.write_bloom(start, rng.choice((0, 1, 64, 100)), at(rng, counters))


def products(core: Any, rng: random.Random) -> None:
    count, m, k, n = (rng.choice((0, 1, 3, 5, 17)) for _ in range(4))
    a, b, out = floats(rng, count, m, k), floats(rng, count, k, n), floats(rng, count, m, n)
    core.products(at(rng, a), at(rng, b), at(rng, out), count, m, k, n)
    x, highest, totals = floats(rng, m, n), floats(rng, m), floats(rng, m)
    core.exponentials(at(rng, x), m, n, at(rng, highest), at(rng, totals), threads(rng))


def topk(core: Any, rng: random.Random) -> None:
    rows, k, columns = (rng.choice((0, 1, 3, 17, 300)) for _ in range(3))
    room, dim = k + rng.choice((1, 5, 0)), rng.choice((1, 3, 8))
    counts = numbers(rng, rows, room).astype(np.int32)
    kept = floats(rng, rows, room), numbers(rng, rows * room, 50).astype(np.int32), counts
    state = (rows, k, room, *(at(rng, one) for one in (*kept, floats(rng, rows))))
    stride = columns + rng.choice((0, 2, -1))
    scores = floats(rng, rows, max(stride, columns))
    core.topk_add(*state, at(rng, scores), max(stride, 0), columns, rng.choice((0, 9, 2**31)))
    filled = -(-columns // core.TOPK_BLOCK) * core.TOPK_BLOCK
    offsets = np.sort(numbers(rng, rows + 1, 5))
    masked = numbers(rng, 5, max(columns, 1)).astype(np.int32)
    asked = at(rng, floats(rng, rows, dim)), dim, at(rng, floats(rng, filled, dim)), columns
    core.topk_products(*state, *asked, at(rng, offsets), at(rng, masked), len(masked))
    best, where = floats(rng, rows, k), numbers(rng, rows * k, 9)
    core.topk_finish(*state, at(rng, best), at(rng, where))


def pairs(core: Any, rng: random.Random) -> None:
    n, dim = rng.choice((0, 1, 5)), rng.choice((1, 3, 16, 20))
    made = [floats(rng, n, dim) for _ in range(6)]
    slopes = floats(rng, n)
    core.pair_loss(*(at(rng, x) for x in made[:3]), n, dim, at(rng, slopes), threads(rng))
    core.pair_gradients(
        *(at(rng, x) for x in made[:3]),
        *(n, dim, at(rng, slopes), 0.5),
        *(uneven(rng, [at(rng, x) for x in made[3:]]), threads(rng)),
    )


def catalogue(core: Any, rng: random.Random) -> None:
    n, k, dim = rng.choice((0, 1, 5, 20)), rng.choice((1, 3, 40, 300)), rng.choice((1, 4, 8, 12))
    width, blocks = core.catalogue_sizes(n, k)
    hidden, rows, bias = floats(rng, n, dim), floats(rng, k, dim), floats(rng, k)
    others = np.unique(numbers(rng, rng.choice((0, 2)), k))
    made = [floats(rng, k, width), floats(rng, blocks, width)]
    found = [floats(rng, n), floats(rng, n), floats(rng, n, dim)]
    core.catalogue_exponentials(
        *(at(rng, hidden), n, dim, at(rng, rows), k, at(rng, bias), at(rng, others), len(others)),
        uneven(rng, [at(rng, x) for x in made]),
        uneven(rng, [at(rng, x) for x in found]),
        threads(rng),
    )
    places = numbers(rng, n, k)
    states, bias_states = [floats(rng, k, dim) for _ in range(3)], [floats(rng, k) for _ in "123"]
    core.catalogue_step(
        *(at(rng, hidden), n, dim, k, [at(rng, x) for x in made], at(rng, found[0])),
        *(at(rng, found[1]), at(rng, places), 0.5, rng.randrange(-1, 9)),
        uneven(rng, [0.1, 1e-8, 0.1, 0.1, 0.0, 1.0]),
        uneven(rng, [at(rng, x) for x in states]),
        uneven(rng, [at(rng, x) for x in bias_states]),
        threads(rng),
    )


def codes(core: Any, rng: random.Random) -> None:
    n, limit = rng.choice((0, 1, 5, 50)), rng.choice((0, 1, 7, 1000))
    given = numbers(rng, n, limit)
    unique, inverse = np.zeros(n, np.int64), np.zeros(n, np.int64)
    told = rng.choice((limit, limit, limit, -1, 2**62))
    core.distinct_codes(at(rng, given), n, told, at(rng, unique), at(rng, inverse))
    core.codes_of(at(rng, given), n, limit, rng.choice((-1, 0, 3)), 3, at(rng, unique))


def add_rows(core: Any, rng: random.Random) -> None:
    rows, dim, n = rng.choice((0, 1, 5)), rng.choice((1, 8)), rng.choice((0, 1, 20))
    total, grads, places = floats(rng, rows, dim), floats(rng, n, dim), numbers(rng, n, rows)
    begun, (starts, weights) = rng.random() < 0.5, bags_of(rng, n)
    bags = (0, 0, 0)
    if rng.random() < 0.5:
        grads = floats(rng, len(starts) - 1, dim)
        bags = (at(rng, starts), len(starts) - 1, at(rng, weights))
    core.add_rows(
        *(at(rng, total), rows, dim, at(rng, places), at(rng, grads), n, begun, *bags),
        threads(rng),
    )


def negatives(core: Any, rng: random.Random) -> None:
    users, items, n, num = 5, rng.choice((1, 2, 30)), rng.choice((0, 1, 9)), rng.choice((0, 1, 3))
    bitmap = np.zeros((users * items + 7) // 8, np.uint8)
    keep, alias = np.ones(items), np.zeros(items, np.int64)
    has = rng.random() < 0.5
    known = uneven(rng, [users, items, bitmap.ctypes.data, 0, 0])
    core.draw_negatives(
        *(known, 5, uneven(rng, [keep.ctypes.data, alias.ctypes.data] if has else [0, 0])),
        *(rng.choice((8, -1, 64)), rng.choice((20, 0, 1)), at(rng, numbers(rng, n, users))),
        *(at(rng, numbers(rng, n, 99)), n, num, at(rng, np.zeros((n, num), np.int64))),
    )


def slots(core: Any, rng: random.Random) -> None:
    from fuzz.files import SLOTS

    keys = core.SlotKeys(["1", "2"], ["dense_feature"], [1], "click", rng.random() < 0.5)
    text = np.frombuffer(mutate(rng, SLOTS, [SLOTS])[: 1 << 14] or b"x", np.uint8).copy()
    ends = np.append(np.flatnonzero(text == 10), len(text))
    starts = np.concatenate([[0], ends[:-1] + 1]).clip(max=len(text))
    stops = np.maximum(ends, starts)
    if rng.random() < 0.1:
        stops = numbers(rng, len(stops), len(text) + 1)
    n, room = len(starts), int((text == 58).sum()) + 2 * len(starts)
    room = rng.choice((room, room, room, 2 * n, 0))
    labels, dense = floats(rng, n), floats(rng, n, 1)
    ids, lengths = np.zeros(room, np.int64), np.zeros((n, 2), np.int64)
    core.parse_slots(
        *(keys, at(rng, text), len(text), at(rng, starts), at(rng, stops), n, at(rng, labels)),
        *(at(rng, dense), at(rng, ids), room, rng.choice((0, lengths.ctypes.data))),
    )


def dropout(core: Any, rng: random.Random) -> None:
    sizes = [rng.choice((0, 1, 40)) for _ in range(rng.choice((0, 1, 3)))]
    mask = floats(rng, sum(sizes))
    rate, first = rng.choice((0.5, 0, 1, -1, 2)), rng.choice((0, 3, 2**32))
    core.dropout_mask(7, rate, first, len(mask), at(rng, mask), threads(rng))
    width = rng.choice((1, 3))
    rows, wide = numbers(rng, len(mask), 50), floats(rng, len(mask), width)
    core.dropout_rows(
        *(7, rate, first, at(rng, rows), len(rows), width, rng.choice((0, width, 9))),
        *(at(rng, wide), threads(rng)),
    )
    core.use_instruction_set(rng.choice((*core.instruction_sets(), core.instruction_set(), "sse9")))


def layers(core: Any, rng: random.Random) -> None:
    n, width = rng.choice((0, 1, 7, 200)), rng.choice((0, 1, 5, 16))
    x = floats(rng, n, width)
    places, count = rng.choice((n, 0, 9)), rng.choice((0, 1, 4))
    starts = np.sort(numbers(rng, count + 1, places + 1))
    ids, weights, out = numbers(rng, places, n), floats(rng, places), floats(rng, count, width)
    more = at(rng, ids), at(rng, weights), places, at(rng, out), threads(rng)
    core.sum_bags(at(rng, x), n, width, at(rng, starts), count, *more)


def placed_pairs(core: Any, rng: random.Random) -> None:
    n, width, count = rng.choice((0, 1, 7, 90)), rng.choice((0, 1, 5, 16)), rng.choice((0, 1, 6))
    x, out = (floats(rng, n, width) for _ in range(2))
    places, slopes = numbers(rng, 3 * count, max(n, 1)), floats(rng, count)
    pairs = at(rng, x), n, width, at(rng, places), count, at(rng, slopes)
    core.placed_pair_loss(*pairs, threads(rng))
    core.placed_pair_gradients(*pairs, 0.5, at(rng, out), threads(rng))


def wire(core: Any, rng: random.Random) -> None:
    one, _, rows, _, _ = table(core, rng)
    reader = core.RowReader([one], uneven(rng, [rows]), threads(rng))
    request = bytes(40) + np.array([1, 0, 3, 1, 2, 3], np.int64).tobytes()
    _sockets(core, rng, reader, request)
    out = floats(rng, 12)
    places = [(0, 6), (6, 6)] if rng.random() < 0.8 else [(2**63, 2**63)]
    arriving = core.Arriving(bytes(rng.choice((40, 40, 39))), at(rng, out), places)
    part = bytes(40) + bytes(48)
    for _ in range(3):
        arriving.take(mutate(rng, part, [part]) if rng.random() < 0.7 else part)


@cache
def _pair() -> tuple[Any, Any, list[int]]:
    """Two connected sockets, and addresses of the functions of libzmq that the core calls."""
    import zmq
    from zmq.backend import Socket

    context = zmq.Context()
    asks, answers = context.socket(zmq.DEALER), context.socket(zmq.ROUTER)
    answers.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an error for a peer that is not there
    asks.setsockopt(zmq.ROUTING_ID, b"asks")
    answers.bind("inproc://fuzz")
    asks.connect("inproc://fuzz")
    for one in (asks, answers):
        one.setsockopt(zmq.RCVTIMEO, 0)
    library = ctypes.CDLL(sys.modules[Socket.__module__].__file__)
    names = ("init_size", "data", "send", "close")
    found = [getattr(library, f"zmq_msg_{name}") for name in names]
    return asks, answers, [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in found]


def _sockets(core: Any, rng: random.Random, reader: Any, request: bytes) -> None:
    """Rows through sockets."""
    import zmq

    asks, answers, functions = _pair()
    for socket in (asks, answers):  # what the input before has left
        with suppress(zmq.Again):
            while True:
                socket.recv()
    sends = core.Outlet(uneven(rng, functions), answers.underlying)
    to = b"asks" if rng.random() < 0.9 else rng.randbytes(5)
    kind, most = rng.choice((100, 100, 7)), rng.choice((4, 4, 1000, 0))
    some = mutate(rng, request, [request]) if rng.random() < 0.5 else request
    reader.send(sends, to, some, kind, most)


def lanes(core: Any, rng: random.Random) -> None:
    size = rng.choice((1, 1, 2, 2, 0, -1, 2**31 - 1))
    capacity = rng.choice((64, 64, 64, 128, 63, 0, 2**63))
    handle = os.memfd_create("lanes")
    try:
        with suppress(*REFUSED):
            os.ftruncate(handle, core.Lanes.memory_of(size, capacity) - rng.choice((0, 0, 0, 1)))
        made = core.Lanes(
            handle, rng.choice((0, 0, 0, 1, -1)), size, capacity, [-1] * min(size, 3), 1
        )
        mine, yours = np.ones(32, np.uint8), np.zeros(32, np.uint8)
        peer, n = rng.choice((0, 0, 1, 5, -1)), rng.choice((0, 1, 8, 32))
        for _ in range(3):
            sends, receives = ([(peer, at(rng, one), n)] for one in (mine, yours))
            ticket = rng.choice((made.start(sends, receives), 2**63))
            made.wait(ticket, 0.001)
            made.done(ticket)
    finally:
        os.close(handle)


CALLS: dict[str, Call] = {
    call.__name__: call
    for call in (
        *(make_table, rows_of_tables, read_and_write, life_of_a_table, products),
        *(topk, pairs, catalogue, codes, add_rows, negatives, slots, dropout, layers),
        *(placed_pairs, wire),
        *((lanes,) if sys.platform == "linux" else ()),
    )
}
