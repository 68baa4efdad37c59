"""Triton kernels that bring equal rows of a step together: all that an update must know of its ids.

    sorted   2 2 2 5 7 7 ...     keys of all occurrences, equal ones in order of arrival
    starts   0     3 4   ...     where each segment of equal keys begins; how many is known on the
                                 device alone, and buffers are as large as they could have to be

Windows cut the sorted order into WINDOW keys each. A segment longer than that has a piece in every
window it touches (a window has pieces of at most two such segments). Pieces and long segments are
listed here, where there is time while rows are read, so that nobody looks for them later.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

WINDOW = tl.constexpr(32)
SCAN = 2048  # keys that one program counts
LIST = 256  # windows that one program looks at for long segments


@dataclass(frozen=True)
class Segments:
    """Occurrences of equal keys; a negative key is of no row."""

    keys: Tensor  # [n] sorted
    order: Tensor  # [n] int64: which occurrence stands here; of bags int32: whose
    starts: Tensor  # [n + 1] int32; segment s is starts[s] to starts[s + 1]
    count: Tensor  # [1] int32: how many there are
    pieces: Tensor  # [2 windows, 2] int32: begin and end of each part of a long one in a window
    long: Tensor  # [windows] int32: segments longer than a window
    totals: Tensor  # [2] int32: how many pieces and long ones there are
    weights: Tensor | None = None  # [n] of the occurrences that stand here; None: 1 each

    def of_bags(self, offsets: Tensor, weights: Tensor | None) -> Segments:
        """Segments where the gradient of an occurrence is that of its bag, times its weight."""
        numbers = torch.arange(len(offsets) - 1, dtype=torch.int32, device=offsets.device)
        bag_of = numbers.repeat_interleave(offsets.diff(), output_size=len(self.keys))
        own = None if weights is None else weights[self.order]
        return replace(self, order=bag_of[self.order], weights=own)


# fmt: off
@triton.jit
def _heads(keys, place, count):
    here = place < count
    key = tl.load(keys + place, mask=here, other=0)
    before = tl.load(keys + place - 1, mask=here & (place > 0), other=0)
    return (here & ((place == 0) | (key != before))).to(tl.int32)


@triton.jit
def _count_segments(keys, counts, count, SCAN: tl.constexpr):
    place = tl.program_id(0) * SCAN + tl.arange(0, SCAN)
    tl.store(counts + tl.program_id(0), tl.sum(_heads(keys, place, count), 0))


@triton.jit
def _list_segments(keys, counts, starts, total, firsts, lasts, count, SCAN: tl.constexpr,
                   WINDOW: tl.constexpr):
    program = tl.program_id(0)
    before = 0
    for begin in range(0, program, SCAN):
        programs = begin + tl.arange(0, SCAN)
        before += tl.sum(tl.load(counts + programs, mask=programs < program, other=0), 0)
    place = program * SCAN + tl.arange(0, SCAN)
    head = _heads(keys, place, count)
    segment = before + tl.cumsum(head, 0) - 1
    tl.store(starts + segment, place, mask=head != 0)
    here = place < count
    tl.store(firsts + place // WINDOW, segment, mask=here & (place % WINDOW == 0))
    is_last = (place % WINDOW == WINDOW - 1) | (place == count - 1)
    tl.store(lasts + place // WINDOW, segment, mask=here & is_last)
    if program == tl.num_programs(0) - 1:
        all_ = before + tl.sum(head, 0)
        tl.store(total, all_)
        tl.store(starts + all_, count)


@triton.jit
def _append(total, chosen):
    """Slots [n] at the end of a list for those chosen: each program's side by side."""
    taken = chosen.to(tl.int32)
    return tl.atomic_add(total, tl.sum(taken, 0)) + tl.cumsum(taken, 0) - 1


@triton.jit
def _list_long(keys, starts, firsts, lasts, pieces, long, totals, windows, WINDOW: tl.constexpr,
               LIST: tl.constexpr):
    """In which order pieces are listed is chance; each has its own place for its sum."""
    window = tl.program_id(0) * LIST + tl.arange(0, LIST)
    here = window < windows
    for which in tl.static_range(2):
        first = tl.load(firsts + window, mask=here, other=0)
        segment = first
        chosen = here
        if which == 1:
            segment = tl.load(lasts + window, mask=here, other=0)
            chosen = here & (segment != first)
        begin = tl.load(starts + segment)
        end = tl.load(starts + segment + 1)
        chosen = chosen & (end - begin > WINDOW) & (tl.load(keys + begin) >= 0)
        slot = _append(totals, chosen)
        tl.store(pieces + 2 * slot, tl.maximum(begin, window * WINDOW), mask=chosen)
        tl.store(pieces + 2 * slot + 1, tl.minimum(end, (window + 1) * WINDOW), mask=chosen)
        begins = chosen & (begin // WINDOW == window)
        tl.store(long + _append(totals + 1, begins), segment, mask=begins)
# fmt: on


def find_segments(keys: Tensor) -> Segments:
    """Sort keys [n], int32 or int64, and list the segments of equal ones."""
    n, device = len(keys), keys.device
    keys, order = keys.sort(stable=True)
    programs = triton.cdiv(n, SCAN)
    windows = triton.cdiv(n, WINDOW.value)
    counts, starts, total, firsts, lasts = (
        torch.empty(size, dtype=torch.int32, device=device)
        for size in (programs, n + 1, 1, windows, windows)
    )
    _count_segments[(programs,)](keys, counts, n, SCAN=SCAN)
    _list_segments[(programs,)](
        keys, counts, starts, total, firsts, lasts, n, SCAN=SCAN, WINDOW=WINDOW.value
    )
    pieces, long = (
        torch.empty(size, dtype=torch.int32, device=device) for size in ((2 * windows, 2), windows)
    )
    totals = torch.zeros(2, dtype=torch.int32, device=device)
    _list_long[(triton.cdiv(windows, LIST),)](
        keys, starts, firsts, lasts, pieces, long, totals, windows, WINDOW=WINDOW.value, LIST=LIST
    )
    return Segments(keys, order, starts, total, pieces, long, totals)
