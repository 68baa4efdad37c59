"""Arriving: rows that servers send, put where they belong as they come."""

from __future__ import annotations

from torch import Tensor

from shoal.kernels.wire import native_arriving
from shoal.ps.wire import BFLOAT16, COMPRESSED, Header, WireError, parse_part, receive_rows

Places = list[tuple[int, int]]  # where values begin in a flat tensor, and how many they are


class ArrivingRows:
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
