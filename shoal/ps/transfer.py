"""Transfer: rows and gradients on their way between a worker and the servers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from shoal.ps.link import Link
from shoal.ps.wire import WITH_DENSE, WireError, copy_rows, numbers, receive_rows

PULL_VALUES = 5 << 16  # values of rows in one answer, about: 1.25 MiB
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


def cut(shares: list[Share], dims: list[int], server: int) -> list[Pieces]:
    """What one server is asked for, as requests of about PULL_VALUES values; at least one."""
    whole = [(k, (piece := share.of(server)).start, piece.stop) for k, share in enumerate(shares)]
    if sum((last - first) * dims[k] for k, first, last in whole) <= PULL_VALUES:
        return [whole]
    requests: list[Pieces] = [[]]
    room = PULL_VALUES
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
            room = PULL_VALUES
    return requests


class Pulling:
    """Rows on their way."""

    def __init__(self, shares: list[Share], dims: list[int], flags: int):
        self.shares, self.dims, self.flags = shares, dims, flags
        self.asked: list[tuple[Link, int, Pieces]] = []

    def wait(self) -> list[Tensor]:
        """Rows [n, dim] of every share, only to be read."""
        shapes = [(len(share.ids), dim) for share, dim in zip(self.shares, self.dims)]
        if len(shapes) == 1:
            whole = torch.empty(shapes[0])
            self._collect(whole, [0])
            return [whole]
        sizes = [n * dim for n, dim in shapes]
        flat = torch.empty(sum(sizes))
        self._collect(flat, list(accumulate(sizes, initial=0)))
        return [piece.view(shape) for piece, shape in zip(flat.split(sizes), shapes)]

    def _collect(self, to: Tensor, starts: list[int]) -> None:
        """Copy what arrives to its place, while the rest is on its way."""
        for link, number, pieces in self.asked:
            places = [
                (starts[k] + first * self.dims[k], (last - first) * self.dims[k])
                for k, first, last in pieces
            ]
            count = sum(length for _, length in places)
            copy_rows(link.answer_body(number), count, self.flags, to, places)


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
