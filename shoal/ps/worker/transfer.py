"""Transfer: rows and gradients on their way between a worker and the servers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.embedding.placements.row_requests import RowRequest
from shoal.ps.wire import WITH_DENSE, Kind, MessageHeader, Wanted, numbers, receive_flat
from shoal.ps.worker.lease import Lease
from shoal.ps.worker.link import ArrivingRows, Caller, Link
from shoal.ps.worker.replicas import Replicas

REQUEST_VALUES = 1 << 18  # of rows, about: a server answers others in between
UNDER_WAY = 16  # requests of a pull that a server has at a time: it drops answers of who reads none
Pieces = list[tuple[int, int, int]]  # number of a share, first and last of its ids


@dataclass(frozen=True)
class ServerRequest(RowRequest):
    """Distinct ids of one table, grouped by the server that holds their rows."""

    table: int
    ids: Tensor  # [n]
    counts: list[int]
    seen: Tensor | None = None  # [n, 2]: shows and clicks of a push; None: one show, no click

    def __post_init__(self) -> None:
        assert self.ids.dtype == torch.int64 and self.ids.is_cpu
        assert self.ids.dim() == 1 and sum(self.counts) == len(self.ids)
        if not self.ids.is_contiguous():  # they are read where they lie
            object.__setattr__(self, "ids", self.ids.contiguous())

    def seen_by(self, server: int) -> Tensor:
        """Shows and clicks of a server's ids in a push, [n, 2]."""
        if self.seen is not None:
            return self.seen[self.part_of(server)]
        return torch.tensor([1.0, 0.0]).repeat(self.counts[server], 1)


def cut(shares: list[ServerRequest], dims: list[int], server: int, max_values: int) -> list[Pieces]:
    """The requests to one server, each of about `max_values` values; at least one request."""
    requests: list[Pieces] = [[]]
    room = max_values
    for k, share in enumerate(shares):
        # Narrower rows count as wide as this, so that the ids of a request stay few.
        dim, piece = max(dims[k], 8), share.part_of(server)
        first = piece.start
        while True:
            last = min(piece.stop, first + max(1, room // dim))
            requests[-1].append((k, first, last))
            room -= (last - first) * dim
            first = last
            if first == piece.stop:
                break
            requests.append([])
            room = max_values
    return requests


class PullMessage(NamedTuple):
    """A message to one server that asks for some of a pull's rows."""

    link: Link | Replicas
    header: MessageHeader
    row_ranges: Wanted
    pieces: Pieces

    def send(self) -> None:
        self.link.ask_rows(self.header, self.row_ranges)


class Pulling:
    """Rows on their way; requests: to each server, of which the first are sent."""

    def __init__(
        self, shares: list[ServerRequest], dims: list[int], requests: list[list[PullMessage]]
    ):
        self.shapes = [(len(share.ids), dim) for share, dim in zip(shares, dims)]
        self.sizes = [n * dim for n, dim in self.shapes]
        starts = list(accumulate(self.sizes, initial=0))
        self.rows, self.requests = torch.empty(starts[-1]), requests
        for request in chain.from_iterable(requests):
            places = [(starts[k] + i * dims[k], (j - i) * dims[k]) for k, i, j in request.pieces]
            answer = request.header.answer(Kind.OK, request.header.flags)
            request.link.expect(request.header.sequence, ArrivingRows(answer, self.rows, places))

    def wait(self) -> list[Tensor]:
        """Rows [n, dim] of every share, only to be read."""
        for number in range(max(map(len, self.requests), default=0)):
            for requests in self.requests:  # in turn, so that all servers are at work
                if number < len(requests):
                    requests[number].link.wait(requests[number].header.sequence)
                if number + UNDER_WAY < len(requests):
                    requests[number + UNDER_WAY].send()
        if len(self.shapes) == 1:
            return [self.rows.view(self.shapes[0])]
        pieces = self.rows.split(self.sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes)]


class Pushing:
    """Gradients on their way."""

    def __init__(self, caller: Caller, flags: int, step: int, lease: Lease | None):
        self.caller = caller
        self.flags = flags
        self.step = step
        self.lease = lease
        self.until = 0 if lease is None else lease.computed  # batches of the lease before this
        self.requests: list[tuple[Link | Replicas, int]] = []

    def wait(self) -> tuple[float, float, list[Tensor]]:
        """Loss and count of the step they were applied in, and the servers' dense parameters."""
        loss = count = 0.0
        dense = []
        for link, number in self.requests:
            frames = link.wait(number, least=1)
            loss, count = numbers(frames[0], 2)
            if self.flags & WITH_DENSE and len(frames) > 1:
                dense.append(receive_flat(frames[1], self.caller.dense_size(link.index)))
        self.caller.pushed = max(self.caller.pushed, self.step + 1)
        if self.lease is not None:
            self.lease.done = self.until
        return loss, count, dense
