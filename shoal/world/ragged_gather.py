"""Padded: several tensors of every rank in one trip, where lengths differ from rank to rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SMALL = 1 << 17  # bytes of a rank that may carry up to 50 % padding


class Padded:
    """Gathers tensors as one padded buffer of bytes from each rank, sizes in front.

    It has room for what the last gathering of such tensors needed, and some more: where that is too
    little, or would be much to send for nothing, a second trip carries the contents.
    """

    def __init__(self, exchange: Callable[[Tensor], Tensor]):
        """exchange: bytes [width] of this rank -> those of all [size, width]."""
        self.exchange = exchange
        self._room: dict[Any, int] = {}  # bytes that gatherings of a kind have room for

    def gather(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[list[int]]]:
        """As World.gather."""
        kind = tuple((tensor.dtype, tensor.shape[1:]) for tensor in tensors)
        row_bytes = [t[:0].new_empty(1, *t.shape[1:]).nbytes for t in tensors]
        lengths = tensors[0].new_tensor([len(t) for t in tensors], dtype=torch.int64)
        flat = torch.cat([t.contiguous().view(-1).view(torch.uint8) for t in tensors])
        head, room = lengths.nbytes, self._room.get(kind, 0)
        gathered = self._send(lengths.view(torch.uint8), flat[:room], head + room)
        # A copy: the line of a rank that is alone is contiguous as it is, and of any width.
        heads = gathered[:, :head].clone(memory_format=torch.contiguous_format)
        per_rank = heads.view(torch.int64).tolist()
        width = max(sum(n * b for n, b in zip(counts, row_bytes)) for counts in per_rank)
        if width > room:
            gathered, head = self._send(flat[:0], flat, width), 0
        self._room[kind] = width + width // 2 if width <= SMALL else 0
        joined, places = [], [head] * len(per_rank)
        for tensor, counts, nbytes in zip(tensors, zip(*per_rank), row_bytes):
            sizes = [count * nbytes for count in counts]
            # A copy aligns the bytes for the element type.
            raw = torch.cat([row[p : p + n] for row, p, n in zip(gathered, places, sizes)])
            joined.append(raw.view(tensor.dtype).view(sum(counts), *tensor.shape[1:]))
            places = [place + size for place, size in zip(places, sizes)]
        return joined, per_rank

    def _send(self, head: Tensor, flat: Tensor, width: int) -> Tensor:
        """Everybody's bytes, padded: [size, width]."""
        mine = flat.new_zeros(width)
        mine[: len(head)] = head
        mine[len(head) : len(head) + len(flat)] = flat
        return self.exchange(mine)
