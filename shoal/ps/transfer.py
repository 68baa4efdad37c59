"""Transfer: rows and gradients on their way between a worker and the servers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from shoal.ps.native import native_arriving
from shoal.ps.wire import (
    BFLOAT16,
    COMPRESSED,
    WITH_DENSE,
    Header,
    Kind,
    WireError,
    numbers,
    parse_part,
    receive_rows,
)
from shoal.ps.worker.link import Link

# Values of rows in one request, about. A server answers others in between; it sends such an answer
# in parts by itself, but rows that it has to pack travel as one message each.
REQUEST_VALUES, PACKED_VALUES = 1 << 23, 5 << 16
Places = list[tuple[int, int]]  # where values begin in a flat tensor, and how many they are
Pieces = list[tuple[int, int, int]]  # number of a share, first and last of its ids


@dataclass(frozen=True)
class Share:
    """Distinct ids of one table, grouped by server: the first counts[0] are server 0's, ..."""

    table: int
    ids: Tensor  # [n]
    counts: list[int]
    seen: Tensor | None = None  # [n, 2]: shows and clicks of a push; None: one show, no click

    def __post_init__(self) -> None:
        assert self.ids.dtype == torch.int64 and self.ids.is_cpu
        assert self.ids.dim() == 1 and sum(self.counts) == len(self.ids)
        if not self.ids.is_contiguous():  # they are read where they lie
            object.__setattr__(self, "ids", self.ids.contiguous())

    def of(self, server: int) -> slice:
        start = sum(self.counts[:server])
        return slice(start, start + self.counts[server])


def seen_by(share: Share, server: int) -> Tensor:
    """What a push tells a server of its ids: shows and clicks, [n, 2]."""
    if share.seen is not None:
        return share.seen[share.of(server)]
    return torch.tensor([1.0, 0.0]).repeat(share.counts[server], 1)


def cut(shares: list[Share], dims: list[int], server: int, most: int) -> list[Pieces]:
    """What one server is asked for, as requests of about `most` values; at least one."""
    whole = [(k, (piece := share.of(server)).start, piece.stop) for k, share in enumerate(shares)]
    if sum((last - first) * dims[k] for k, first, last in whole) <= most:
        return [whole]
    requests: list[Pieces] = [[]]
    room = most
    for k, share in enumerate(shares):
        dim, piece = dims[k], share.of(server)
        first = piece.start
        while True:
            last = min(piece.stop, first + max(1, room // dim))
            requests[-1].append((k, first, last))
            room -= (last - first) * dim
            first = last
            if first == piece.stop:
                break
            requests.append([])
            room = most
    return requests


class Arriving:
    """Rows of one request, copied to their places in a tensor as they come."""

    def __init__(self, header: Header, to: Tensor, places: Places):
        self.flags = header.flags
        self.to, self.places = to, places  # held here: native code writes there, too
        self.total, self.done, self.begun = sum(length for _, length in places), 0, False
        plain = not self.flags & (BFLOAT16 | COMPRESSED)
        self.core = native_arriving(header.pack(), to.data_ptr(), places) if plain else None

    @property
    def whole(self) -> bool:
        """Whether all rows are there."""
        return self.begun and self.done == self.total if self.core is None else self.core.whole

    def take(self, frame: memoryview) -> None:
        """Copy a part; one that is not the next is dropped: it came before, or comes again."""
        if self.core is not None:
            if not self.core.take(frame):
                raise WireError(f"{len(frame)} bytes that are not part of the rows asked for")
            return
        first, rows = parse_part(frame)
        if first != self.done and 0 <= first < self.total:
            return
        plain = not self.flags & (BFLOAT16 | COMPRESSED)
        count = len(rows) // 4 if plain else self.total
        if first != self.done or first + count > self.total or (self.total and not count):
            raise WireError(f"{count} values from {first} on; there are {self.total}")
        values = receive_rows(rows, [count], [1], self.flags)[0].view(-1)
        flat = self.to.view(-1)
        begin = 0  # of a place, among all values
        for place, length in self.places:
            low, high = max(first, begin), min(first + count, begin + length)
            if low < high:
                start = place + low - begin
                flat[start : start + high - low] = values[low - first : high - first]
            begin += length
        self.begun, self.done = True, first + count


Asked = list[tuple[Link, Header, Pieces]]


class Pulling:
    """Rows on their way."""

    def __init__(self, shares: list[Share], dims: list[int], asked: Asked):
        self.shapes = [(len(share.ids), dim) for share, dim in zip(shares, dims)]
        self.sizes = [n * dim for n, dim in self.shapes]
        starts = list(accumulate(self.sizes, initial=0))
        self.rows, self.asked = torch.empty(starts[-1]), asked
        for link, header, pieces in asked:
            places = [(starts[k] + i * dims[k], (j - i) * dims[k]) for k, i, j in pieces]
            answer = header.answer(Kind.OK, header.flags)
            link.rows[header.sequence] = Arriving(answer, self.rows, places)

    def wait(self) -> list[Tensor]:
        """Rows [n, dim] of every share, only to be read."""
        for link, header, _ in self.asked:
            link.wait(header.sequence)
        if len(self.shapes) == 1:
            return [self.rows.view(self.shapes[0])]
        pieces = self.rows.split(self.sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes)]


class Pushing:
    """Gradients on their way."""

    def __init__(self, flags: int):
        self.flags = flags
        self.asked: list[tuple[Link, int]] = []

    def wait(self) -> tuple[float, float, list[Tensor]]:
        """Loss and count of the step they were applied in, and the servers' dense parameters."""
        loss = count = 0.0
        dense = []
        for link, number in self.asked:
            frames = link.answer(number)
            loss, count = numbers(frames[0], 2)
            if self.flags & WITH_DENSE and len(frames) > 1:
                dense.append(flat_values(frames[1]))
        return loss, count, dense


def flat_values(frame: memoryview) -> Tensor:
    """A frame of dense parameters: [n]."""
    if len(frame) % 4:
        raise WireError(f"dense parameters of {len(frame)} bytes")
    return receive_rows(frame, [len(frame) // 4], [1], 0)[0].view(-1)
