"""Arriving: rows that servers send, put where they belong."""

from __future__ import annotations

from torch import Tensor

from shoal.kernels.wire import native_arriving
from shoal.ps.wire import BFLOAT16, COMPRESSED, HEADER, MessageHeader, WireError, receive_rows

Places = list[tuple[int, int]]  # where values begin in a flat tensor, and how many they are


class ArrivingRows:
    """Rows of one request, copied to their places in a tensor when they come."""

    def __init__(self, header: MessageHeader, to: Tensor, places: Places):
        self.flags = header.flags
        self.to, self.places = to, places  # held here: native code writes there, too
        plain = not self.flags & (BFLOAT16 | COMPRESSED)
        self.core = native_arriving(header.pack(), to.data_ptr(), places) if plain else None

    def take(self, frame: memoryview) -> None:
        """Copy the rows of an answer; WireError where it does not fit the request."""
        if self.core is not None:
            if not self.core.take(frame):
                raise WireError(f"{len(frame)} bytes that are not the rows asked for")
            return
        lengths = [length for _, length in self.places]
        values = receive_rows(frame[HEADER.size :], [sum(lengths)], [1], self.flags)[0].view(-1)
        flat = self.to.view(-1)
        for (place, length), row_values in zip(self.places, values.split(lengths)):
            flat[place : place + length] = row_values
