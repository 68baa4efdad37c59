"""Spare rows: room behind rows in memory, so that few more cost no copy of all."""

from __future__ import annotations

from torch import Tensor


class SpareRows:
    """Rows by name, with room behind them.

    Who reads the first n rows goes on doing so: what is behind them is written once.

    >>> import torch
    >>> spare = SpareRows()
    >>> rows = spare.append("rows", torch.zeros(2, 1), torch.ones(1, 1))
    >>> spare.append("rows", rows, torch.ones(2, 1)).data_ptr() == rows.data_ptr()
    True
    """

    def __init__(self) -> None:
        self._rooms: dict[str, tuple[Tensor, int]] = {}  # the room, and how much of it is used

    def append(self, name: str, rows: Tensor, new: Tensor) -> Tensor:
        """Rows [n, ...] and new ones [m, ...] behind: [n + m, ...]."""
        count, total = len(rows), len(rows) + len(new)
        room, used = self._rooms.get(name, (rows, -1))
        if used != count or rows.data_ptr() != room.data_ptr() or total > len(room):
            # What is never written takes no memory.
            room = rows.new_empty(total + max(1024, total // 4), *rows.shape[1:])
            room[:count] = rows
        room[count:total] = new
        self._rooms[name] = room, total
        return room[:total]
